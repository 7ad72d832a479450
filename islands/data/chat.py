"""Conversations as token ids, with a mark on the tokens of the answers.

A conversation is a list of messages, `{"role": ..., "content": ...}`. A Jinja template writes it as
one text: the one of the tokenizer (`chat_template.jinja`, or `chat_template` in
`tokenizer_config.json`), or else `PLAIN`. The answers are the messages of the role `assistant`. The
text of an answer is what the template adds behind the prompt for it, so the token that ends a turn
belongs to the answer. So does a token that reaches into an answer from the text before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import UserMistake
from islands.data.text_tokens import TextEncoder, library

ANSWER = "assistant"
"""The role whose messages are predicted."""
MESSAGES = "messages"
"""The usual field of a conversation."""
TEMPLATE, SETTINGS = "chat_template.jinja", "tokenizer_config.json"
"""The files beside a tokenizer that may have a template."""
DEFAULT = "default"
"""The name of the template that is used if the settings have several."""
PLAIN = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""The template of tokenizers that have none, and of bytes."""


class Unfit(Exception):
    """A conversation that cannot be written or encoded, with the reason."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A template with the texts that it may name."""

    text: str
    """The Jinja template."""
    own: bool
    """Whether it is the tokenizer's, and so writes the tokens that begin a text."""
    begin: str = ""
    """The text of `bos_token`."""
    end: str = ""
    """The text of `eos_token`."""


@dataclass(frozen=True, slots=True, eq=False)
class EncodedChat:
    """A conversation as token ids."""

    ids: NDArray[np.int64]
    answers: NDArray[np.bool_]
    """Whether each token belongs to an answer."""


def template_of(tokenizer: str | None) -> ChatTemplate:
    """Return the template beside a tokenizer's file; `PLAIN` if there is none.

    Errors: `UserMistake` if the settings are no JSON, or have no template to use among several.
    """
    if tokenizer is None:
        return ChatTemplate(PLAIN, own=False)
    given = Path(tokenizer).expanduser()
    folder = given if given.is_dir() else given.parent
    settings: dict[str, Any] = {}
    try:
        if (folder / SETTINGS).is_file():
            settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        text = settings.get("chat_template")
        if (folder / TEMPLATE).is_file():
            text = (folder / TEMPLATE).read_text(encoding="utf-8")
        if isinstance(text, list):
            text = {each["name"]: each["template"] for each in text}[DEFAULT]
        if not isinstance(text, str | None):
            raise TypeError(f"chat_template is a {type(text).__name__}, and no text")
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise UserMistake(f"{folder}: the chat template cannot be read: {error}") from error
    except KeyError as error:
        raise UserMistake(
            f"{folder}: {SETTINGS} has several chat templates, and none has the name {DEFAULT!r}: "
            f"write the one to use to {TEMPLATE}"
        ) from error
    if text is None:
        return ChatTemplate(PLAIN, own=False)
    return ChatTemplate(text, True, _token(settings, "bos_token"), _token(settings, "eos_token"))


def _token(settings: dict[str, Any], name: str) -> str:
    found = settings.get(name)
    return str(found.get("content", "") if isinstance(found, dict) else found or "")


class ChatEncoder:
    """The encoder of conversations."""

    def __init__(self, encoder: TextEncoder, content: bytes | None, template: ChatTemplate) -> None:
        """Compile the template.

        `encoder`: that of the documents; `content`: the tokenizer's file, None for bytes.

        Errors: `UserMistake` if it is no template.
        """
        self.plain, self.template = encoder, template
        self.vocabulary = encoder.vocabulary  # with the special tokens that the template names
        self._tokenizer: Any = None
        self._special: re.Pattern[str] | None = None
        if content is not None:
            self._tokenizer = library().Tokenizer.from_buffer(content)
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            added = self._tokenizer.get_added_tokens_decoder()
            special = {token.content: n for n, token in added.items() if token.special}
            longest_first = sorted(map(re.escape, special), key=len, reverse=True)
            self._special = re.compile("|".join(longest_first)) if special else None
            source = f"{template.text}{template.begin}{template.end}"
            written = [number for text, number in special.items() if text in source]
            self.vocabulary = max([encoder.vocabulary, *(number + 1 for number in written)])
        from islands.data.chat_environment import compiled

        try:
            self._template = compiled(template.text)
        except ValueError as error:
            raise UserMistake(f"the chat template of the tokenizer is broken: {error}") from error

    def written(self, messages: object) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of a conversation, and the places of the answers in it.

        Errors: `Unfit`.
        """
        turns = _checked(messages, self._special)
        whole = self._text(turns)
        spans = list[tuple[int, int]]()
        for number, turn in enumerate(turns):
            if turn["role"] != ANSWER:
                continue
            before = self._text(turns[:number], prompt=True)
            until = self._text(turns[: number + 1])
            if not until.startswith(before) or not whole.startswith(until):
                raise Unfit(
                    f"the template writes message {number + 1} otherwise if more follow, so the "
                    "answer cannot be found in the text"
                )
            spans.append((len(before), len(until)))
        return whole, spans

    def encoded(self, texts: Sequence[tuple[str, list[tuple[int, int]]]]) -> list[EncodedChat]:
        """Return conversations that were written as ids, each with the token that ends it."""
        if self._tokenizer is None:
            return [self._ended(*_bytes(text), spans, text) for text, spans in texts]
        given = [text for text, _ in texts]
        found = self._tokenizer.encode_batch(given, add_special_tokens=False)
        return [
            self._ended(np.array(each.ids, np.int64), np.array(each.offsets), spans, text)
            for each, (text, spans) in zip(found, texts, strict=True)
        ]

    def _ended(
        self, ids: NDArray[np.int64], places: Any, spans: list[tuple[int, int]], text: str
    ) -> EncodedChat:
        """Return the conversation with the tokens that begin and end a document.

        `places`: the first character of each token and the one behind it, [tokens, 2]. A token that
        begins before an answer and reaches into it belongs to the answer: many tokenizers have one
        token for a space and the word behind it.
        """
        starts, ends = np.asarray(places, np.int64).reshape(-1, 2).T
        answers = np.zeros(len(ids), np.bool_)
        for begin, end in spans:
            answers |= (np.maximum(ends, starts + 1) > begin) & (starts < end)
        last = bool(spans) and spans[-1][1] == len(text)
        begun = () if self.template.own else self.plain.start
        ended = () if len(ids) and ids[-1] == self.plain.end_token else (self.plain.end_token,)
        return EncodedChat(
            np.concatenate([np.array(begun, np.int64), ids, np.array(ended, np.int64)]),
            np.concatenate([np.zeros(len(begun), bool), answers, np.full(len(ended), last)]),
        )

    def _text(self, turns: Sequence[dict[str, str]], *, prompt: bool = False) -> str:
        try:
            return self._template(
                messages=turns,
                add_generation_prompt=prompt,
                bos_token=self.template.begin,
                eos_token=self.template.end,
            )
        except ValueError as error:
            raise Unfit(f"the template refuses it: {error}") from error


def _bytes(text: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the bytes of a text, and the places of each byte's character, [bytes, 2]."""
    widths = [len(character.encode()) for character in text]
    ids = np.frombuffer(text.encode(), np.uint8).astype(np.int64)
    first = np.repeat(np.arange(len(text)), widths)
    return ids, np.stack([first, first + 1], axis=1)


def _checked(messages: object, special: re.Pattern[str] | None) -> list[dict[str, str]]:
    """Return the messages.

    Errors: `Unfit` if they have another form, or contain a special token as text.
    """
    if not isinstance(messages, list) or not messages:
        raise Unfit("it is no list of messages")
    found = list[dict[str, str]]()
    for number, message in enumerate(messages, 1):
        role, content = (
            (message.get(key) if isinstance(message, dict) else None) for key in ("role", "content")
        )
        if not isinstance(role, str) or not isinstance(content, str):
            raise Unfit(f"message {number} needs a role and a content, both text")
        try:
            (role + content).encode()
        except UnicodeEncodeError as error:
            raise Unfit(f"message {number} is not UTF-8: {error.reason}") from error
        if special is not None and (hit := special.search(content)):
            raise Unfit(f"message {number} contains the special token {hit.group()!r} as text")
        if "\0" in content:
            raise Unfit(f"message {number} contains a byte 0, which ends documents")
        found.append({"role": role, "content": content})
    return found
