"""The site: ``make docs`` builds it, offline; a warning is an error."""

import functools
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import version as version_of
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from sphinx.domains.python import PyObject
from sphinx.pycode import ModuleAnalyzer

import distmetrics

project = "distmetrics"
project_copyright = "the distmetrics authors, Apache-2.0"
version = release = version_of("torch-distmetrics")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True  # as in the code: a value may be long, such as all of os.environ
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
# Kept here, since the site is built offline: classes and functions, and where they are described.
# Python's are from Debian's python3.11-doc, torch's from nbdev-pytorch 0.0.2385.
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", "inventories/python.inv"),
    "torch": ("https://docs.pytorch.org/docs/stable", "inventories/torch.inv"),
}
napoleon_use_ivar = True
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
html_theme = "furo"
html_title = f"distmetrics {release}"
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

HERE = Path(__file__).parent


def public_modules() -> Iterator[ModuleType]:
    """Yield the modules that say by ``__all__`` what users import from there."""
    for found in pkgutil.walk_packages(distmetrics.__path__, "distmetrics."):
        source = Path(found.module_finder.path, *found.name.rpartition(".")[2:])
        paths = source.with_suffix(".py"), source / "__init__.py"
        if any("\n__all__" in path.read_text() for path in paths if path.exists()):
            yield importlib.import_module(found.name)


@functools.cache
def public_classes() -> frozenset[type]:
    """Return the classes that have an entry."""
    offered = [getattr(m, name) for m in (distmetrics, *public_modules()) for name in m.__all__]
    return frozenset(value for value in offered if inspect.isclass(value))


def class_lines(name: str, value: type) -> list[str]:
    """Return the directive of a class; it lists what bases without an entry of their own add."""
    kind = "exception" if issubclass(value, BaseException) else "class"
    public = public_classes()
    known = [base for base in value.__mro__[1:] if base in public]
    names = [*vars(value)]
    for base in value.__mro__[1:]:
        if base.__module__.startswith("distmetrics") and base not in public:
            names += [each for each in vars(base) if not any(hasattr(one, each) for one in known)]
    # A hook that is not overridden does nothing, under its own name.
    shown = [each for each in dict.fromkeys(names) if is_shown(each, getattr(value, each, None))]
    lines = [f".. auto{kind}:: {name}"]
    lines += [f"   :members: {', '.join(shown)}"] if shown else []
    return [*lines, *(["   :show-inheritance:"] if known else []), ""]


def is_shown(name: str, value: Any) -> bool:
    """True for a member that users may need: documented, public, and no field of a tuple."""
    text = getattr(value, "__doc__", None) or ""
    own = getattr(value, "__name__", name)
    of_a_tuple = text.startswith("Alias for field number")
    is_plain = isinstance(value, str | int | float | tuple | dict | list | frozenset)
    is_private = name != "__call__" and "_" in (name[0], own[0])
    return not (is_private or of_a_tuple or is_plain or not text)


def comment_on(name: str, value: Any) -> Iterable[str]:
    """Return the ``#:`` comment above the place where a value is set."""
    for module in [*sys.modules.values()]:
        if module.__name__.startswith("distmetrics") and vars(module).get(name) is value:
            comments = ModuleAnalyzer.for_module(module.__name__).find_attr_docs()
            if ("", name) in comments:
                return comments["", name]
    return []


def data_lines(name: str, value: Any) -> list[str]:
    """Return the directive of a value."""
    is_type = hasattr(value, "__origin__")
    about = f"   :value: {value}".replace("typing.", "") if is_type else ""
    about = about or f"   :type: {type(value).__name__}"
    text = [f"   {line}" for line in comment_on(name, value)]
    return [f".. py:data:: {name}", about, "", *text, ""]


def reference_page(module: ModuleType, known: dict[int, str]) -> str:
    """Return the page of a module: each name in full where it comes first, else a link."""
    title = module.__name__.replace(".", ".\u200b")  # where a narrow column may break it
    if module is distmetrics:
        title += " (top level)"  # the start page is called distmetrics
    lines = [title, "=" * len(title), "", f".. py:module:: {module.__name__}", ""]
    lines += [inspect.getdoc(module) or "", ""]
    for name in module.__all__:
        value = getattr(module, name)
        is_object = inspect.isclass(value) or inspect.isfunction(value)
        if is_object and id(value) in known:
            lines += [f"- :py:obj:`{name} <{known[id(value)]}>`", ""]
            continue
        if is_object:
            known[id(value)] = f"{module.__name__}.{name}"
        if inspect.isclass(value):
            lines += class_lines(name, value)
        elif is_object:
            lines += [f".. autofunction:: {name}", ""]
        elif not inspect.ismodule(value):
            lines += data_lines(name, value)
    return "\n".join(lines)


def write_reference(app: Any) -> None:
    """Write a page for each public module into ``reference/``, which git ignores."""
    folder = HERE / "reference"
    folder.mkdir(parents=True, exist_ok=True)
    known: dict[int, str] = {}
    for module in (distmetrics, *public_modules()):
        page = folder / f"{module.__name__}.rst"
        text = reference_page(module, known)
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def without_checks(app: Any, function: Any, is_method: bool) -> None:
    """Take what our arguments are checked by out of their types, before a signature is written."""
    hints = getattr(function, "__annotations__", {})
    if "Annotated[" in str(hints):
        function.__annotations__ = get_type_hints(function)


def readable(
    app: Any, what: str, name: str, value: Any, options: Any, arguments: str | None, returns: Any
) -> tuple[str | None, Any]:
    """Leave out of a signature what nobody types: a default that is made, an error's arguments."""
    if what == "exception" and arguments and "__init__" not in vars(value):
        return "", None
    arguments = arguments and re.sub(r", \*\*unknown: [~.\w]+", "", arguments)
    return arguments and re.sub(r"<factory>|lambda [^,)]*", "...", arguments), returns


def public_bases(app: Any, name: str, value: Any, options: Any, bases: list[Any]) -> None:
    """Name the nearest base that has an entry."""
    bases[:] = [base for base in value.__mro__[1:] if base in public_classes()][:1]


def setup(app: Any) -> None:
    """Have the reference written before anything is read."""
    app.connect("builder-inited", write_reference)
    app.connect("autodoc-before-process-signature", without_checks)
    app.connect("autodoc-process-signature", readable)
    app.connect("autodoc-process-bases", public_bases)
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"  # as the docstrings say
