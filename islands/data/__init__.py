"""The reading of corpora of any size: documents, tokenizers, token directories, buckets.

Modules:

    buckets           files in a bucket, with the part of `pathlib.Path` that readers use
    damage            the problems of documents: refused, or counted and left out
    formats           the formats of a source's files, and which format a file has
    json_lines        text and JSON lines, from any byte on
    tables            columns of Parquet and Arrow files, from any row on
    documents         the documents of a file, whatever its format
    text_tokens       tokenizers of Hugging Face, loaded, checked and trained
    encoding          documents as token ids with the ends of documents
    token_index       the index of a token directory
    durable_files     files that are written aside, flushed and renamed
    tokenize_plan     the input of a token directory; the training of a tokenizer
    token_writer      the writing of a token directory, which a later call can continue
    joined_tokens     the tokens of many files as one sequence, read where they are
    mixture           several corpora as one, in fixed shares
    segments          the numbers of the documents in a window
    inspection        the figures and the problems of a source
"""
