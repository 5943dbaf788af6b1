"""How each named pre-tokeniser of GGUF's byte-level BPE splits text before the merges: regular expressions, in order."""

from __future__ import annotations

from collections.abc import Mapping

from pumice.core.records import dataclass
from pumice.errors import FormatError

_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ASCII_MARKS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_HAN_HANGUL = "[一-龥ࠀ-一가-퟿]+"
# Letters of the scripts with case, as DeepSeek's first tokeniser lists them.
_CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄ"
    "ῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)

_DIGIT = r"\p{N}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _words(digits: str, marks: str = r" ?[^\s\p{L}\p{N}]+[\r\n]*", suffixes: str = _SUFFIXES + "|", spaces: str = _SPACES) -> str:
    """The pattern that came with cl100k, in its variants of how many digits go together."""
    return rf"{suffixes}[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|{marks}|{spaces}"


def _cased_words(digits: str, suffixes: str = "") -> str:
    """The pattern that came with o200k and Tekken: words split where lower case turns to upper."""
    start, rest = r"[^\r\n\p{L}\p{N}]?", rf"{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    return rf"{start}{_UPPER}*{_LOWER}+{suffixes}|{start}{_UPPER}+{_LOWER}*{suffixes}|{rest}"


def _deepseek3(after_marks: str) -> tuple[str, ...]:
    words = rf"{_ASCII_MARKS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    return r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", rf"{words}| ?[\p{{P}}\p{{S}}]+{after_marks}"


_DEEPSEEK3 = _deepseek3(rf"[\r\n]*|{_SPACES}")
# Jais 2 keeps runs of spaces of these lengths together.
_RUNS = r"\s*[\r\n]+|" + "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")) + r"|\s"


@dataclass(frozen=True, slots=True)
class Splitting:
    """One way to split: each expression isolates its matches in what the ones before it left.

    `whole_words` means that a word which is in the vocabulary is one token, whatever the merges say; `add_bos` is what
    holds when the file does not say; `nfc` composes characters first, as the tokeniser's original does.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False
    nfc: bool = False


_PLAIN_GPT2 = Splitting((_GPT2,))
_DIGITS_GPT2 = Splitting((_DIGIT, _GPT2))
_LLAMA3 = Splitting((_words(r"\p{N}{1,3}"),), whole_words=True, add_bos=True)
_CL100K = Splitting((_words(r"\p{N}{1,3}"),))
_QWEN2 = Splitting((_words(_DIGIT),), nfc=True)
_O200K = Splitting((_cased_words(r"\p{N}{1,3}", _SUFFIXES + "?"),))
_BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"

# Names of vocabularies in GGUF's BPE that are no byte-level ones: spaces are marked as in SentencePiece, nothing is split.
METASPACE = frozenset({"gemma4", "granite-embed-multi-311m"})

_TABLE: Mapping[str, Splitting] = {
    "default": Splitting((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), _LLAMA3),
    "jina-v5-nano": _LLAMA3,
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _CL100K),
    **dict.fromkeys(("glm4", "glm5"), Splitting(_CL100K.patterns, whole_words=True)),
    "jais-2": Splitting((_words(r"\p{N}{1,3}", spaces=_RUNS),)),
    "minicpm5": Splitting((r"\p{N}{1,3}", _words(r"\p{N}+")), whole_words=True),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN2),
    **dict.fromkeys(("stablelm2", "hunyuan", "grok-2", "solar-open", "kormo", "f2llmv2"), Splitting((_words(_DIGIT),))),
    "ufakzeka": Splitting((_words(_DIGIT, suffixes=""),)),
    "laguna": Splitting((r"[^\n]+|\n+", _words(_DIGIT))),
    "exaone-moe": Splitting(
        (
            rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|{_DIGIT}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        ),
    ),
    "qwen35": Splitting(
        (
            rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|{_DIGIT}"
            rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
        ),
    ),
    **dict.fromkeys(
        ("gpt-2", "phi-2", "mpt", "jais", "trillion", "granite-docling", "gigachat", "exaone4", "a.x-4.0", "mellum"), _PLAIN_GPT2
    ),
    **dict.fromkeys(("roberta-bpe", "jina-v1-en", "jina-v2-code", "jina-v2-de", "jina-v2-es", "jina-de", "jina-es"), _PLAIN_GPT2),
    **dict.fromkeys(("olmo", "modern-bert"), Splitting((_GPT2,), nfc=True)),
    **dict.fromkeys(("starcoder", "refact", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"), _DIGITS_GPT2),
    "command-r": Splitting((_DIGIT, _GPT2), nfc=True),
    "falcon": Splitting((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "deepseek-llm": Splitting(
        ("[\r\n]", rf"\s?[{_CASED}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _HAN_HANGUL, r"\p{N}+"),
    ),
    "deepseek-coder": Splitting(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_HANGUL, _DIGIT)),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), Splitting(_DEEPSEEK3)),
    "spark2_5": Splitting((*_deepseek3(r"|[\r\n]|\s+(?!\S)|\s+"), _DIGIT)),
    "tekken": Splitting((_cased_words(_DIGIT),), whole_words=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2", "talkie"), _O200K),
    "granite-embed-multi-97m": Splitting(_O200K.patterns, whole_words=True),
    # Digits in threes from the right.
    **dict.fromkeys(("tiny_aya", "cohere2moe"), Splitting((r"\d{1,3}(?=(?:\d{3})*\b)", *_O200K.patterns))),
    "youtu": Splitting(
        (
            "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
            _cased_words(_DIGIT, _SUFFIXES + "?"),
        ),
        whole_words=True,
    ),
    "chameleon": Splitting(
        ("<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", r"[\t\n]|    |  ", _DIGIT, r"[\p{P}!-/:-@\[-`{-~]", _GPT2), add_bos=True
    ),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), Splitting((_BLOOM,))),
    "viking": Splitting((_BLOOM, _DIGIT)),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), Splitting(
        (
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        ),
    )),
    "seed-coder": Splitting((_words(_DIGIT, r" ?[^\s\p{L}\p{N}\r\n]+"),)),
}  # fmt: skip


def names() -> tuple[str, ...]:
    """Every name that can be looked up.

    >>> "smollm" in names(), "llama-bpe" in names()
    (True, True)
    """
    return tuple(_TABLE)


def find(name: str) -> Splitting:
    """How the pre-tokeniser `name` splits.

    >>> find("smollm").patterns[0]
    '\\\\p{N}'
    >>> find("k2-horizon")
    Traceback (most recent call last):
    pumice.errors.FormatError: [format] the GGUF file names the pre-tokeniser 'k2-horizon', which is not known
      hint: ...
    """
    try:
        return _TABLE[name]
    except KeyError:
        raise FormatError(
            f"the GGUF file names the pre-tokeniser {name!r}, which is not known",
            hint="text would be split wrongly, so it is not guessed; the known ones are " + ", ".join(sorted(_TABLE)),
            key="tokenizer.ggml.pre",
            got=name,
        ) from None
