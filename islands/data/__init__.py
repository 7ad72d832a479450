"""The reading of corpora of any size: documents, tokenizers, token directories, buckets.

Modules:

    buckets           files in a bucket, with the part of `pathlib.Path` that readers use
    local_paths       places to write to, which are on this machine
    damage            the problems of documents: refused, or counted and left out
    formats           the formats of a source's files, and which format a file has
    json_lines        text and JSON lines, from any byte on
    tables            columns of Parquet and Arrow files, from any row on
    documents         the documents of a file, whatever its format
    text_tokens       tokenizers of Hugging Face, loaded, checked and trained
    chat              conversations as token ids, with a mark on the answers
    chat_environment  chat templates in a sandbox of Jinja
    encoding          documents as token ids with the ends of documents
    token_index       the index of a token directory
    durable_files     files that are written aside, flushed and renamed
    tokenize_plan     the input of a token directory; the training of a tokenizer
    open_shard        a shard of a token directory while it is written
    directory_checks  the checks of a token directory against the settings of a task
    token_writer      the writing of a token directory, which a later call can continue
    joined_tokens     the tokens of many files as one sequence, read where they are
    mixture           several corpora as one, in fixed shares
    segments          the arrays of a batch: tokens, their documents, and which ones count
    inspection        the figures and the problems of a source
"""
