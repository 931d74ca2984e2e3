#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Lists public entities without a documentation comment: what stands at namespace scope in headers, outside of `detail`.

    comments.py [ROOT]

A comment covers the declarations of the same name that follow it, and a run of declarations without a blank line between them.
"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".") / "include" / "weft"
DECLARATION = re.compile(
    r"^(?:template\b.*|\[\[.*\]\]\s*)?(?:(?:inline|constexpr|consteval|static|extern|explicit|friend|auto|const)\s+)*"
    r"(?:(?:class|struct|enum class|enum|concept|union)\s+(?P<type>\w+)|using\s+(?P<alias>\w+)\s*=|.*?\b(?P<name>operator\S+|\w+)\s*(?:[({=;]|$))")


def entities(text):
    """(line, name, documented) of every declaration at namespace scope that is not in a namespace `detail`."""
    scopes, depth, documented, last, pending = [], 0, False, None, []
    raw = False
    for number, line in enumerate(text.splitlines(), 1):
        if raw:  # inside of a raw string
            raw = ')"' not in line
            continue
        code = re.sub(r'"(?:[^"\\]|\\.)*"', '""', re.sub(r"R\"\(.*", 'R', line) if 'R"(' in line else line)
        raw = 'R"(' in line and ')"' not in line.split('R"(', 1)[1]
        bare = re.sub(r"//.*", "", code).rstrip()
        at_namespace_scope = depth == len(scopes)
        if at_namespace_scope and not any("detail" in s for s in scopes):
            if line.startswith("///"):
                documented = True
            elif not line.strip():
                documented = False
                last = None if not pending else last
            elif bare and not bare.startswith(("#", "//", "}", "namespace", "inline namespace", "  ", "requires", "static_assert")):
                pending.append(bare)
                joined = " ".join(pending)
                if not re.match(r"^template\s*<[^{;]*>$", joined) and not (joined.startswith("template") and joined.count("<") > joined.count(">") and "(" not in joined):
                    declared = re.sub(r"^template\s*<.*?>\s*(?=(?:inline|constexpr|class|struct|concept|using|auto|void|\w))", "", joined)
                    m = DECLARATION.match(declared)
                    name = m and (m["type"] or m["alias"] or m["name"])
                    specialised = re.search(r"\b(?:struct|class)\s+\w+<", declared) or re.match(r"^template\s*<>", joined)
                    forward = re.match(r"^(?:class|struct)\s+\w+;$", declared)
                    if name and not specialised and not forward:
                        yield number, name, documented or name == last
                        if documented: last = name
                    pending = []
        opened = bare.count("{") - bare.count("}")
        if at_namespace_scope and re.match(r"^(?:inline )?namespace\b[^;=]*\{\s*$", bare):
            scopes.append(bare)
        depth += opened
        while len(scopes) > depth:
            scopes.pop()


total = missing = 0
for path in sorted(root.rglob("*.hpp")):
    for line, name, documented in entities(path.read_text()):
        total += 1
        if not documented:
            missing += 1
            print(f"{path}:{line}: {name}")
print(f"{total} public entities, {missing} without a comment")
sys.exit(missing > 0)
