"""The site: ``make docs`` builds it, offline; a warning is an error."""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from sphinx.domains.python import PyObject

import distmetrics

project = "distmetrics"
project_copyright = "the distmetrics authors, Apache-2.0"
version = release = distmetrics.__version__

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
autodoc_preserve_defaults = True  # as written: the value of os.environ is the builder's own
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
html_js_files = ["site.js"]

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
    """Return the directive of a class, with the members of bases that have no entry."""
    kind = "exception" if issubclass(value, BaseException) else "class"
    bases = value.__mro__[1:]
    known = [base.__name__ for base in bases if base in public_classes()]
    ends = known + [base.__name__ for base in bases if not is_ours(base)]
    lines = [f".. auto{kind}:: {name}", "   :members:", f"   :inherited-members: {', '.join(ends)}"]
    return [*lines, *(["   :show-inheritance:"] if known else []), ""]


def is_ours(kind: type) -> bool:
    """True for a class of this package."""
    return kind.__module__.startswith("distmetrics")


def reference_page(module: ModuleType, known: dict[int, str]) -> str:
    """Return the page of a module: each name in full where it comes first, else a link."""
    title = module.__name__.replace(".", ".\u200b")  # where a narrow column may break it
    if module is distmetrics:
        title += " (top level)"  # the start page is called distmetrics
    lines = [title, "=" * len(title), "", inspect.getdoc(module) or "", ""]
    lines += [f".. currentmodule:: {module.__name__}", ""]
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
            plain = [f".. py:data:: {name}", f"   :type: {type(value).__name__}"]
            lines += [f".. autodata:: {name}", "   :no-value:"] if is_ours(type(value)) else plain
            lines += [""]
    return "\n".join(lines)


def write_reference(app: Any) -> None:
    """Write a page for each public module into ``reference/``, which git ignores."""
    folder = HERE / "reference"
    folder.mkdir(parents=True, exist_ok=True)
    known: dict[int, str] = {}
    modules = (distmetrics, *public_modules())
    pages = {folder / f"{module.__name__}.rst": module for module in modules}
    for gone in set(folder.iterdir()) - set(pages):
        gone.unlink()
    for page, module in pages.items():
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
    """Leave out of a signature a default that is made anew, and the arguments of all errors."""
    if what == "exception" and arguments and "__init__" not in vars(value):
        return "", None
    return arguments and arguments.replace("<factory>", "..."), returns


def is_alias(app: Any, what: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    """Leave out the fields of a named tuple, of which the class tells."""
    return True if (getattr(value, "__doc__", "") or "").startswith("Alias for field") else None


def public_bases(app: Any, name: str, value: Any, options: Any, bases: list[Any]) -> None:
    """Name the nearest base that has an entry."""
    bases[:] = [base for base in value.__mro__[1:] if base in public_classes()][:1] or bases


def setup(app: Any) -> None:
    """Have the reference written before anything is read."""
    app.connect("builder-inited", write_reference)
    app.connect("autodoc-before-process-signature", without_checks)
    app.connect("autodoc-process-signature", readable)
    app.connect("autodoc-skip-member", is_alias)
    app.connect("autodoc-process-bases", public_bases)
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"  # as the docstrings say
