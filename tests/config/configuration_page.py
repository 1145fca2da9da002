"""The tables of the configuration reference, generated from the declared keys.

Update the page with `.venv/bin/python tests/config/configuration_page.py`.
"""

import re
from pathlib import Path

from millrace.config import keys, section_types, use_protocol_sections
from millrace.protocols.registry import protocol_sections

use_protocol_sections(protocol_sections)

PAGE = Path(__file__).parents[2] / "docs/reference/configuration.md"
HEAD = "| key | default | description | reload | flag |\n|---|---|---|---|---|\n"


def reference_table(section: str) -> str:
    """The table of one section in Markdown."""
    rows = [HEAD]
    for key in keys().values():
        if key.section == section:
            reload = "yes" if key.doc.reload else "no"
            flag = f"`{key.flag}`" if key.doc.flag else ""
            default = f"`{key.value_type.write(key.default)}`"
            rows.append(f"| `{key.name}` | {default} | {key.doc.text} | {reload} | {flag} |\n")
    return "".join(rows)


def update(page: str) -> str:
    """The page with the table of every section replaced."""
    for section in section_types():
        head, heading, remaining = page.partition(f"\n## [{section}]\n")
        remaining = re.sub(
            r"^\| key \|.*\n(\|.*\n)*",
            reference_table(section).replace("\\", r"\\"),
            remaining,
            count=1,
            flags=re.M,
        )
        page = head + heading + remaining
    return page


if __name__ == "__main__":
    PAGE.write_text(update(PAGE.read_text("utf-8")), "utf-8")
