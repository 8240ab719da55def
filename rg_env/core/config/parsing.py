"""Typed configs. An error reports the key's path and a fix and, if the key is set, its value and the value's origin.

    document = read_config("configs/train/tiny.yaml", ["training.learning_rate=2e-6"])    # see `core.config.files`
    config = parse_config(document, TrainConfig)                                          # a frozen pydantic model

This module also defines the sections and field types that training and evaluation configs share.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from rg_env.core.config.files import COMMAND_LINE, Document, Keys, without_key
from rg_env.core.config.files import read_config as read_config
from rg_env.core.prompts import SYSTEM_PROMPT, Placement
from rg_env.core.tasks.task_table import is_task_option
from rg_env.core.text import plain, shortened
from rg_env.errors import ConfigError, InputError, nearest, unknown_name

_Section = TypeVar("_Section", bound="Section")


class Section(BaseModel):
    """A frozen section of a config with typed, documented fields. A one-item list of strings may be given as a plain
    string.

    Raises:
        InputError: the values passed to the constructor are invalid.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    renamed: ClassVar[Mapping[str, str]] = {}
    """Keys from other releases and other tools, with their replacements. The keys of a top-level schema apply to all of
    its sections."""
    expected: ClassVar[str] = ""
    """Error message for a value that is not a mapping. If `expected` is empty, the message names a key."""
    short: ClassVar[str] = ""
    """Key that is set if plain text is given instead of a mapping, as in `model=tiny`. If `short` is empty, plain text
    is an error."""
    mistaken: ClassVar[Mapping[str, str]] = {}
    """For a top-level schema: keys found only in another kind of config, with advice on what to do with such a config.
    """

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise input_error(type(self), error, values, f"{type(self).__name__}.") from None

    # Sections of config files are validated without `__init__`, so that each problem is reported at its own key.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        if isinstance(value, str) and cls.short:
            return {cls.short: value}
        if not isinstance(value, dict):
            return value
        lists = {name for name, field in cls.model_fields.items() if _is_list_of_text(field.annotation)}
        return {key: [each] if isinstance(each, str) and key in lists else plain(each) for key, each in value.items()}


@dataclass(frozen=True)
class Problem:
    """A problem with one value, and how to fix it."""

    path: Keys
    message: str
    secret: bool = False
    """Whether to hide the value in error messages."""


def parse_config(
    document: Document, schema: type[_Section], names: Callable[[_Section], Iterable[Problem]] = lambda config: ()
) -> _Section:
    """Parse and validate a config.

    Args:
        names: function that returns the problems with names that the schema cannot check, such as task names. If
            validation fails, these problems are reported together with the schema's own, where possible. If validation
            succeeds, `names` is not called.

    Raises:
        ConfigError: the config is of another kind, or keys or values are invalid. The error reports all invalid keys
            and values at once.
    """
    for key, message in schema.mistaken.items():
        if key in document.values and key not in schema.model_fields:
            if document.origin((key,)) == COMMAND_LINE:
                raise config_error(document, [Problem((key,), message)])
            raise ConfigError(f"{document.file}: {message}")
    problems = [*_wrong_nulls(schema, document)]
    try:
        config = _validated(schema, document.values)
    except ValidationError as error:
        problems += problems_in(schema, error)
        rest = document.without(problem.path for problem in problems)
        with contextlib.suppress(ValidationError):  # a required key may be missing
            problems += names(_validated(schema, rest.values))
    if problems:
        raise config_error(document, problems)
    return config


def _validated(schema: type[_Section], values: Mapping[str, Any]) -> _Section:
    # JSON mode converts lists to tuples but does not convert anything else.
    return schema.model_validate_json(json.dumps(values))


def _wrong_nulls(schema: type[BaseModel], document: Document) -> Iterator[Problem]:
    """Yield a problem for each unknown key that is set to null, and for each task that is null but was not set before.
    Validation would miss such a key because null removes it."""
    for path in document.nulls:
        section = _section_at(schema, path[:-1])
        if section is not None and path[-1] not in section.model_fields:
            yield Problem(path, unknown_key(schema, path, "section"))
        elif path in document.idle_nulls and issubclass(_section_at(schema, path) or Section, TaskOptions):
            yield Problem(path, "has no value: write {} for the defaults")


def config_error(document: Document, problems: Iterable[Problem]) -> ConfigError:
    """Return a single error for all problems in a config. The line for each problem contains the key's path and a fix
    and, if the key is set, its value and the value's origin."""
    lines = list(dict.fromkeys(_line(document, problem) for problem in problems))
    if len(lines) == 1:
        is_missing = lines[0].endswith(f": {_MESSAGES['missing']}")
        return ConfigError(f"{document.file}: {lines[0]}" if is_missing and " @ " not in lines[0] else lines[0])
    return ConfigError("\n  ".join([f"{document.file}: {len(lines)} mistakes", *lines]))


def _line(document: Document, problem: Problem) -> str:
    path, message = problem.path, problem.message
    prefixes = (path[:length] for length in range(len(path), 0, -1))
    given = path if path in document.nulls else next((each for each in prefixes if document.get(each) is not None), ())
    value = document.get(given)
    if given != path:
        if isinstance(value, Mapping):
            return f"{'.'.join(path)}: {message}"
        rest = ".".join(filter(None, path[len(given) :]))  # the section or list was given in its short form
        message = message if repr(rest) in message or rest.isdecimal() else f"{rest} {message}"
    if not given:
        return message
    shown = json.dumps(value) if value is None or isinstance(value, bool) else shortened(value)
    return f"{'.'.join(given)} = {'***' if problem.secret else shown} @ {document.origin(given)}: {message}"


def input_error(schema: type[BaseModel], error: ValidationError, values: Mapping[str, Any], where: str) -> InputError:
    """Return the error for invalid `values` that are not from a config file. `where` precedes each field name."""
    texts = []
    for problem in problems_in(schema, error, term="field"):
        value = values.get(problem.path[0])
        # Values of other types, such as an entire environment, are omitted because they can be long.
        shown = f"={shortened(value)}" if isinstance(value, int | float | str) else ""
        texts.append(f"{where}{'.'.join(problem.path)}{shown}: {problem.message}")
    return InputError("; ".join(texts))


def problems_in(schema: type[BaseModel], error: ValidationError, *, term: str = "section") -> Iterator[Problem]:
    """Yield the problems that validation against `schema` found. Error messages refer to an unknown top-level field as
    `term`."""
    for found in error.errors(include_url=False):
        path = tuple(str(key) for key in found["loc"] if key != "[key]")
        kind, context, message = found["type"], found.get("ctx", {}), found["msg"]
        if kind == "extra_forbidden":
            hints = list(_hints(schema, path, found["input"])) if isinstance(found["input"], Mapping) else [None]
            yield from filter(None, hints)
            if all(hints):
                continue
            message = unknown_key(schema, path, term)
        elif kind == "model_type" and (section := _section_at(schema, path)):
            first = next(iter(section.model_fields))
            own = getattr(section, "expected", "")
            message = own or f"is a section with its own keys, such as {'.'.join((*path, first))}"
        elif kind == "value_error":
            message = str(context["error"])
        elif kind in _MESSAGES:
            message = _MESSAGES[kind].format(**context) + _remedy(kind, path, found["input"], context)
        yield Problem(path, message)


def _remedy(kind: str, path: Keys, value: Any, context: Mapping[str, Any]) -> str:
    """Return how to write the number or name that was meant, or "" if that is not known."""
    if kind == "literal_error" and isinstance(value, str) and value:
        names = re.findall("'([^']*)'", context["expected"])
        near = [name for name in names if name.startswith(value.lower())] or nearest(value.lower(), names)
        return f": did you mean {near[0]!r}?" if near else ""
    if kind in ("int_type", "float_type"):
        if isinstance(value, str) and _is_number(value):
            return ": leave out the underscores" if "_" in value else ": remove the quotes"
        several = value.split(",") if isinstance(value, str) and "," in value else value
        if isinstance(several, list) and several and all(map(_is_number, several)):
            return f"; to train with each value, use --sweep {'.'.join(path)}={','.join(map(str, several))}"
    return ""


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def unknown_key(schema: type[BaseModel], path: Keys, kind: str = "key") -> str:
    """Return the message for an unknown key, with a suggestion if possible: the replacement for another tool's key, the
    same key in another section, or a similar key."""
    section, name = _section_at(schema, path[:-1]), path[-1]
    if section is None:
        return str(unknown_name("key", name, ()))
    if not name.isprintable():
        return f"{name!r} contains an invisible character or an unusual space: indent with plain spaces"
    head, _, rest = name.partition(".")
    if rest and head in section.model_fields:
        return f"a key cannot contain a period: write {head}: {{{rest}: VALUE}}"
    for known in (section, schema):
        if name in (renamed := getattr(known, "renamed", {})):
            return _located(str(renamed[name]), schema, section)
    if issubclass(section, TaskOptions) and is_task_option(name):
        return f"is an option of the task; use config: {{{name}: VALUE}}"
    sections = [((), schema), *_sections(schema)]
    found = [".".join((*place, name)) for place, each in sections if each is not section and name in each.model_fields]
    if found:
        shown = [text if "." in text else f"{text} (at the top level)" for text in found[:3]]
        return f"unknown key {name!r}: did you mean {' or '.join(shown)}?"
    return str(unknown_name("key" if len(path) > 1 else kind, name, section.model_fields))


def _hints(schema: type[BaseModel], path: Keys, value: Any) -> Iterator[Problem | None]:
    """Yield, for each value in another tool's section, the replacement for its key, or None."""
    if isinstance(value, Mapping) and value:
        for name, each in value.items():
            yield from _hints(schema, (*path, name), each)
    else:
        advice = getattr(schema, "renamed", {}).get(path[-1])
        yield Problem(path, _located(advice, schema, schema)) if advice else None


def likely_key(schema: type[BaseModel], name: str) -> str | None:
    """Return the dotted key that `name`, an option or another tool's key, most likely means, or None."""
    if name.partition(".")[0] in schema.model_fields:
        return name
    if advice := getattr(schema, "renamed", {}).get(name):
        match = re.match(r"use ([\w.]+)", _located(advice, schema, schema))
        return match[1] if match and match[1].partition(".")[0] in schema.model_fields else None
    match = re.search(r"did you mean (\S+?\.\S+?)[ ?]", unknown_key(schema, (name,)))
    return match[1] if match else None


def _located(advice: str, schema: type[BaseModel], section: type[BaseModel]) -> str:
    """Add its section to the key in "use KEY" if the key is neither in `section` nor at the top level."""
    match = re.match(r"use (\w+)\b(?!\.)", advice)
    if not match or match[1] in {*section.model_fields, *schema.model_fields}:
        return advice
    paths = (".".join((*place, match[1])) for place, each in _sections(schema) if match[1] in each.model_fields)
    return advice.replace(match[1], next(paths, match[1]), 1)


def _sections(schema: type[BaseModel], above: Keys = ()) -> Iterator[tuple[Keys, type[BaseModel]]]:
    """Yield a schema's sections with their paths, except sections under user-chosen names."""
    for name, field in schema.model_fields.items():
        if section := _section_at(field.annotation, ()):
            yield (*above, name), section
            yield from _sections(section, (*above, name))


def _alternatives(annotation: Any) -> list[Any]:
    """Return the types allowed by an annotation, without None and metadata."""
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [each for part in get_args(annotation) if part is not type(None) for each in _alternatives(part)]
    return [annotation]


def _section_at(schema: Any, path: Keys) -> type[BaseModel] | None:
    """Return the schema for the section at `path`, or None if `path` cannot be a section."""
    schema = _alternatives(schema)[0]
    if path and get_origin(schema) is dict:
        return _section_at(get_args(schema)[1], path[1:])
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return None
    if not path:
        return schema
    return _section_at(schema.model_fields[path[0]].annotation, path[1:]) if path[0] in schema.model_fields else None


def _is_list_of_text(annotation: Any) -> bool:
    items = [get_args(each)[0] for each in _alternatives(annotation) if get_origin(each) in (list, tuple)]
    return any(item is str or get_origin(item) is Literal for each in items for item in _alternatives(each))


def problem_of(path: Keys, check: Callable[[], Any]) -> Iterator[Problem]:
    """Yield the problem with the value at `path` if `check` raises an error."""
    try:
        check()
    except InputError as error:
        yield Problem(path, str(error))


def problems_within(
    path: Keys, spec: Mapping[str, Any], check: Callable[[Any], Any], hint: str = ""
) -> Iterator[Problem]:
    """Yield a problem for each error that `check` raises for `spec`, at the error's key. After each error, `check` runs
    again without the invalid key."""
    while True:
        try:
            check(spec)
            return
        except InputError as error:
            yield Problem((*path, *error.keys), f"{error}{hint}")
            if not error.keys:
                return
            spec = without_key(spec, error.keys)


_MESSAGES = {
    "missing": "is required",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text (quote it if it is meant as text)",
    "string_too_short": "must not be empty",
    "too_short": "must contain at least {min_length} item(s)",
    "bool_type": "must be true or false",
    "literal_error": "must be one of {expected}",
    "list_type": "must be a list, such as [a, b]",
    "tuple_type": "must be a list, such as [a, b]",
    "dict_type": "must be a mapping of names, such as {{name: value}}",
    "is_instance_of": "must be of class {class}",
}


_MOST = 2**31 - 1  # every library accepts counts up to this number
Positive = Annotated[int, Field(ge=1, le=_MOST)]
Count = Annotated[int, Field(ge=0, le=_MOST)]
Share = Annotated[float, Field(ge=0, le=1)]
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]
From0 = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


def _path(text: str) -> str:
    if "\0" in text:
        raise ValueError("contains a null character, which is not allowed in names and paths")
    return text


Text = Annotated[str, Field(min_length=1), AfterValidator(_path)]


Weight = Annotated[float, Field(gt=0, le=1e100, allow_inf_nan=False)]


class TaskOptions(Section):
    """Difficulty of a task's questions."""

    config: dict[str, Any] = Field(default_factory=dict)
    """Options of the task, as listed by `rg-env tasks NAME`. Options that are not set here keep the library's defaults.
    """
    level: Count | None = None
    """Difficulty level for all attributes in the task's curriculum. Default: the library's own settings."""
    levels: dict[str, Count] = Field(default_factory=dict)
    """Difficulty levels for individual attributes, which override `level`."""


def named(example: str, remedy: str) -> Callable[[Any], Any]:
    """Return a validator that converts a name, or a list of names and of mappings that contain a name, into a mapping
    keyed by name.

    The validator's error messages show `example` (a mapping with a name) or, if a name occurs twice, `remedy`.
    """

    def read(value: Any) -> Any:
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list):
            return value
        entries: dict[str, Any] = {}
        for item in value:
            rest = dict(item) if isinstance(item, Mapping) else {}
            name = rest.pop("name", None) if rest else item
            if not isinstance(name, str):
                raise ValueError(f"must be a list of names, or of mappings with a name: [a, {example}]")
            if name in entries:
                raise ValueError(f"{name!r} appears twice: {remedy}")
            entries[name] = rest
        return entries

    return read


def _is_shot(message: Any) -> bool:
    return (
        isinstance(message, Mapping)
        and message.keys() == {"role", "content"}
        and message["role"] in ("user", "assistant")
        and isinstance(message["content"], str)
    )


class PromptConfig(Section):
    """Settings that determine how a question becomes a prompt."""

    system_prompt: str = SYSTEM_PROMPT
    """Instructions for the answer format. The answer is read from the last <answer>...</answer> outside
    the thinking section. With an empty `system_prompt`, the prompt is just the question."""
    placement: Placement = "system"
    """Position of `system_prompt`: in the "system" message, or in the user turn before ("user") or after
    ("user_after") the question."""
    preamble: str = ""
    """Additional text at the start of the system message, before `system_prompt` if `placement` is "system". Default:
    no additional text."""
    few_shot: Count | list[dict[str, str]] = Field(default_factory=list)
    """Number of examples before the question, or the examples' chat messages, such as `[{role: user, content:
    "2 + 3 ="}, {role: assistant, content: "<answer>5</answer>"}]`. With a number, the examples are training questions
    of the same task with their gold answers in `<answer>` tags; they are never evaluation questions, and your own data
    needs messages. Default: no examples."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables of the model's chat template, such as `{enable_thinking: false}` for Qwen3. Default: the template's own
    defaults."""

    @field_validator("few_shot", mode="before")
    @classmethod
    def _are_messages(cls, value: Any) -> Any:
        is_number = type(value) is int and value >= 0
        if not is_number and not (isinstance(value, Sequence) and all(map(_is_shot, value))):
            raise ValueError(
                "must be a number of examples, or a list of messages with a role (user or assistant) and content"
            )
        return value

    @property
    def arguments(self) -> dict[str, Any]:
        """The section as arguments of an environment."""
        names = {"placement": "prompt_placement"}
        return {names.get(name, name): getattr(self, name) for name in type(self).model_fields}


class RewardConfig(Section):
    """A reward function. A plain number sets the reward's weight."""

    expected = "must be a number, the reward's weight, or a mapping such as {weight: 0.1, when: correct}"

    weight: Annotated[float, Field(ge=-1e38, le=1e38, allow_inf_nan=False)] = 1.0
    """Weight of the reward in the sum of all rewards. A negative weight makes the reward a penalty. With a weight of 0,
    the reward is only logged."""
    when: Literal["answered", "correct", "not_correct"] | None = None
    """Completions to which the reward applies: those with an answer ("answered"), with a correct answer ("correct"), or
    without a correct answer ("not_correct"). Default: all completions."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the reward function."""


def _weighted(value: Any) -> Any:
    """Convert a list of names, or of mappings that contain a name, into a mapping keyed by name, and convert plain
    numbers into weights."""
    value = named("{name: b, weight: 0.5}", "name it once")(value)
    if not isinstance(value, Mapping):
        return value
    return {name: {"weight": each} if type(each) in (int, float) else each for name, each in value.items()}


Rewards = Annotated[dict[str, RewardConfig], BeforeValidator(_weighted)]
"""Rewards by name."""


DEFAULT_REWARDS = {"correctness": 1.0, "format": 0.1}
"""Weights of the default rewards. The format reward has a low weight so that it never outweighs a correct answer."""


def default_rewards() -> dict[str, RewardConfig]:
    """Return `DEFAULT_REWARDS` as a section of a config."""
    return {name: RewardConfig(weight=weight) for name, weight in DEFAULT_REWARDS.items()}
