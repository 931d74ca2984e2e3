#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Lists public entities without a documentation comment; the exit code is 1 if there are any.

    comments.py [ROOT]

A public entity is a type, function, variable, alias or concept that a header declares at namespace scope outside of `detail`.
Its comment begins with `///` and is directly above one of its declarations. It covers overloads of the same name, also in other
headers, and declarations that follow without a blank line. Forward declarations of types, specializations, members
defined outside of their class, deduction guides and macros need none.
"""
import pathlib
import re
import sys

TEXT = re.compile(
    r"(?P<documentation>///[^\n]*)|//[^\n]*|/\*.*?\*/|(?P<directive>^[ \t]*\#(?:\\\n|[^\n])*)"
    r'|(?P<literal>R"\(.*?\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\')', re.S | re.M)
NAME = r"[A-Za-z_]\w*"
NOT_DECLARATIONS = re.compile(
    r"template\s*<\s*>|template\s+\w|extern\b|using\s+(namespace\b|[\w:]+$)|static_assert\b|catch\b|requires\b")


def without_text(source):
    """`source` without comments, literals and directives, with the same lines; and the lines of documentation and directives."""
    documentation, directives = set(), set()

    def blank(match):
        first, lines = source.count("\n", 0, match.start()) + 1, match[0].count("\n")
        if match["documentation"]:
            documentation.add(first)
        if match["directive"]:
            directives.update(range(first, first + lines + 1))
        return ('""' if match["literal"] else "") + "\n" * lines

    return TEXT.sub(blank, source), documentation, directives


def end_of(text, begin, opening, closing):
    """The position at which the bracket opened at `begin` is closed; the > of -> closes nothing."""
    depth = 0
    for i in range(begin, len(text)):
        depth += (text[i] == opening) - (text[i] == closing and text[i - 1 : i + 1] != "->")
        if depth == 0:
            return i
    raise ValueError(f"no end: {text[begin:begin + 80]}")


def in_template_parameters(text):
    """Whether `text` ends inside template parameters."""
    opened = text.replace("->", "").count("<") - text.replace("->", "").count(">")
    return text.startswith("template") and opened > 0


def declarations(code):
    """(namespace, first line, last line, text before a block or semicolon, whether it has a block) at namespace scope."""
    scopes, begin, parentheses, i = [], None, 0, 0
    while i < len(code):
        c = code[i]
        if begin is None and c == "}":
            scopes.pop()
        elif begin is None and not c.isspace() and c != ";":
            begin = i
        if begin is not None:
            parentheses += (c == "(") - (c == ")")
            if c == "{" and in_template_parameters(code[begin:i]):  # a default value
                i = end_of(code, i, "{", "}")
            elif c in ";{" and parentheses == 0:
                text, first = " ".join(code[begin:i].split()), code.count("\n", 0, begin) + 1
                begin = None
                if re.match(r"(inline )?namespace\b", text) and c == "{":
                    scopes.append(text.split()[-1])
                else:
                    if c == "{":
                        i = end_of(code, i, "{", "}")
                        if re.match(r"(struct|class|union|enum)\b|(?!.*\boperator)[^(]*=", declarator(text)):
                            i = code.index(";", i)
                    yield "::".join(scopes), first, code.count("\n", 0, i) + 1, text, c == "{"
        i += 1


def declarator(text):
    """`text` without attributes, template parameters and the constraint that follows them."""
    text = re.sub(r"\[\[.*?\]\]", " ", text).strip()
    while text.startswith("template"):
        text = text[end_of(text, text.index("<"), "<", ">") + 1 :].strip()
    begins = r"constexpr|consteval|inline|auto|void|struct|class|concept|using|WEFT_INLINE"
    return re.sub(rf"^requires\b.*?(?=\b(?:{begins})\b)", "", text)


def name_of(text, has_block):
    """The name that a declaration introduces; None if it needs no comment."""
    if NOT_DECLARATIONS.match(text):
        return None
    head = declarator(text)
    if of_type := re.match(rf"(?:struct|class|union|(enum)(?: class)?) ({NAME})( ?<|::)?", head):
        return of_type[2] if (has_block or of_type[1]) and not of_type[3] else None
    if alias := re.match(rf"(?:using|concept) ({NAME})", head):
        return alias[1]
    if operator := re.search(r"\b(operator ?(?:\(\)|[^\s(]+)) ?\(", head):
        return operator[1]
    is_guide = re.match(rf"{NAME} ?\(", head)
    found = re.match(rf"[^({{=]*?({NAME}(?:::{NAME})*)( ?<[^({{=]*>)? ?(?:\[[^\]]*\] ?)*(?:[({{=]|$)", head)
    return found[1] if found and not (found[2] or is_guide or "::" in found[1]) else None


def entities(path):
    """(qualified name, line, whether it has a comment) of the public entities that a header declares."""
    code, documentation, directives = without_text(path.read_text())
    covered = 0  # the last line that the previous comment covers
    for scope, first, last, text, has_block in declarations(code):
        above = first - 1
        while above in directives:
            above -= 1
        has_comment = above in documentation or above == covered
        covered = last if has_comment else covered
        if "detail" not in scope and (name := name_of(text, has_block)):
            yield f"{scope}::{name}", first, has_comment


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".") / "include" / "weft"
    found = [(path, *entity) for path in sorted(root.rglob("*.hpp")) for entity in entities(path)]
    documented = {name for _, name, _, has_comment in found if has_comment}
    missing = [(path, line, name) for path, name, line, _ in found if name not in documented]
    for path, line, name in missing:
        print(f"{path}:{line}: {name}")
    print(f"{len(found)} public entities, {len(missing)} without a comment")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
