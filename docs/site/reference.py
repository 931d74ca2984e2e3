# SPDX-License-Identifier: MIT
"""What MkDocs adds to the pages: the API reference, one page per header from its comments, and the sources that
pages link to. A hook of mkdocs.yml."""
import html
import os
import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "include" / "weft"
FOLDERS = ["tensor", "expr", "op", "grad", "run", "nn", "optim", "train", "io", "onnx", "parallel", "comm", "device", "gpu",
           "base", "shape", "graph", "lower"]


def folders():
    return [f for f in FOLDERS if (INCLUDE / f).is_dir()] + sorted(
        p.name for p in INCLUDE.iterdir() if p.is_dir() and p.name not in FOLDERS)


def on_config(config):
    """The reference has a chapter for each folder, before the last chapter, which takes pages that mkdocs.yml does not
    name."""
    named = set(re.findall(r"(\S+\.md)$", (ROOT / "docs/site/mkdocs.yml").read_text(), re.M))
    rest = sorted(str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md"))
    config.nav[-1]["About"] += [p for p in rest if p not in named and not p.startswith("site/")]
    chapters = [{"Overview": "reference/index.md"}]
    for folder in folders():
        pages = [f"reference/{folder}/index.md"] + [
            {str(header.relative_to(INCLUDE / folder)): f"reference/{page_of(header)}"} for header in headers(folder)]
        chapters.append({folder: pages})
    config.nav.insert(len(config.nav) - 1, {"API reference": chapters})
    return config


def page_of(header):
    """Its page within reference/."""
    inside = header.relative_to(INCLUDE)
    return f"{inside.parts[0]}/{'_'.join(inside.with_suffix('').parts[1:])}.md"


def headers(folder):
    return sorted((INCLUDE / folder).rglob("*.hpp"))


def on_files(files, config):
    def add(path, text):
        files.append(File.generated(config, path, content=text))

    add("reference/index.md", overview())
    for folder in folders():
        add(f"reference/{folder}/index.md", folder_page(folder))
        for header in headers(folder):
            add(f"reference/{page_of(header)}", header_page(header))
    for target in sorted(linked_sources(files)):
        text = (ROOT / target).read_text()
        language = {".py": "python", ".sh": "sh", ".md": "md", "": "sh"}.get(target.suffix, "cpp")
        fence = "````"
        body = text if language == "md" else f"{fence}{language}\n{text}{fence}\n"
        body = re.sub(r"\]\((?!https?:)[^)]*\)", "]", body) if language == "md" else f"# {target.name}\n\n`{target}`\n\n{body}"
        add(f"source/{target}.md", body)
    return files


LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


def outside(page_path, target):
    """The path in the repository that a link of a page leads to, if that is outside of docs/."""
    if re.match(r"[a-z]+:", target):
        return None
    to = (ROOT / "docs" / page_path).parent / target
    to = pathlib.Path(os.path.normpath(to))
    inside = to.is_relative_to(ROOT / "docs") and not to.is_relative_to(ROOT / "docs" / "site")
    return None if inside or not to.is_file() else to.relative_to(ROOT)


def linked_sources(files):
    for f in files:
        if f.src_uri.endswith(".md") and not f.src_uri.startswith("reference/"):
            for found in LINK.finditer((ROOT / "docs" / f.src_uri).read_text()):
                to = outside(f.src_uri, found.group(2))
                if to and not to.is_relative_to("include"):
                    yield to


def on_page_markdown(markdown, page, config, files):
    """Links that leave docs/ lead to the reference or to a page that shows the source."""
    here = page.file.src_uri
    if here.startswith(("reference/", "source/")):
        return markdown

    def changed(m):
        to = outside(here, m.group(2))
        if not to:
            return m.group(0)
        if to.is_relative_to("include/weft") and to.suffix == ".hpp":
            target = f"reference/{page_of(ROOT / to)}" if len(to.parts) > 3 else "reference/index.md"
        else:
            target = f"source/{to}.md"
        return m.group(1) + os.path.relpath(target, os.path.dirname(here) or ".") + m.group(3)

    return LINK.sub(changed, markdown)


# The reference.


def overview():
    text = ["# API reference", "",
            "One page per header, made from its comments. A folder may include only the folders that it names; "
            "`#include <weft/weft.hpp>` brings everything for one process without files.", "",
            "| folder | what it is |", "|---|---|"]
    for folder in folders():
        text.append(f"| [{folder}]({folder}/index.md) | {purpose_of_folder(folder)} |")
    return "\n".join(text) + "\n"


def purpose_of_folder(folder):
    lines = (INCLUDE / folder / "README.md").read_text().splitlines()
    return next((line for line in lines if line and not line.startswith("#")), "")


def folder_page(folder):
    text = [f"# {folder}", "", (INCLUDE / folder / "README.md").read_text().split("\n", 1)[1].strip(), "",
            "| header | what it is |", "|---|---|"]
    for header in headers(folder):
        first = re.split(r"(?<=[.:])\s", comment_at_top(header)[0] + " ")[0]
        text.append(f"| [{header.relative_to(INCLUDE / folder)}]({page_of(header).split('/')[1]}) | {escaped(first)} |")
    return "\n".join(text) + "\n"


def comment_at_top(header):
    """The comment that a header opens with: its prose, joined, and the examples in it."""
    prose, paragraphs, code = [], [], []
    for line in header.read_text().splitlines()[1:]:
        if not line.startswith("//"):
            break
        text = line[2:]
        if text.startswith("   "):
            code.append(text[3:])
            continue
        if code:
            paragraphs += [" ".join(prose), code]
            prose, code = [], []
        if text.strip():
            prose.append(text.strip())
        elif prose:
            paragraphs.append(" ".join(prose))
            prose = []
    paragraphs += [" ".join(prose)] + ([code] if code else [])
    return [p for p in paragraphs if p] or [""]


def escaped(text):
    """Prose of a comment as Markdown: template brackets are no HTML, stars and underscores no emphasis."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"([*_|\[\]])", r"\\\1", html.escape(p, quote=False)) for p in parts)


def header_page(header):
    path = header.relative_to(INCLUDE.parent)
    text = [f"# {header.name}", "", "```cpp", f"#include <{path}>", "```", ""]
    for paragraph in comment_at_top(header):
        if isinstance(paragraph, list):
            text += ["```cpp", *paragraph, "```", ""]
        else:
            text += [escaped(paragraph), ""]
    everything = entities(header)
    kinds = [("function", "Functions"), ("type", "Types"), ("value", "Constants and concepts")]
    if any(e["kind"] == "type" and e["name"] == header.stem for e in everything):
        kinds[:2] = reversed(kinds[:2])
    for kind, title in kinds:
        found = [e for e in everything if e["kind"] == kind]
        if found:
            text += [f"## {title}", ""]
        for name, group in grouped(found):
            text += [f"### {escaped(name)}", ""]
            for e in group:
                text += ["```cpp", e["signature"], "```", ""]
                if e["comment"]:
                    text += [*prose_of(e["comment"]), ""]
    return "\n".join(text) + "\n"


def grouped(found):
    names = list(dict.fromkeys(e["name"] for e in found))
    return [(n, [e for e in found if e["name"] == n]) for n in names]


def prose_of(comment):
    """Comment lines as Markdown; indented ones are code."""
    out, code = [], []
    for line in comment + [""]:
        if line.startswith("   "):
            code.append(line[2:])
            continue
        if code:
            out += ["", "```cpp", *code, "```", ""]
            code = []
        out.append(escaped(line.strip()))
    return out


HIDDEN = re.compile(r"^(detail|op|simd|math)$")


def entities(header):
    """The documented and the callable entities of the namespaces that users name, without bodies."""
    lines = header.read_text().splitlines()
    shown_op = header.parent.name == "op" and header.stem == "rule"
    scopes, found, comment, i = [], [], [], 0
    while i < len(lines):
        line = lines[i]
        opened = re.match(r"^(?:inline )?namespace ([\w:]+) \{$", line)
        if opened:
            names = opened.group(1).split("::")
            hidden = any(HIDDEN.match(n) and not (n == "op" and shown_op) for n in names)
            prefix = "".join(f"{n}::" for n in names if n != "weft")
            scopes.append((hidden, prefix))
            comment, i = [], i + 1
            continue
        if re.match(r"^\}\s*(// namespace.*)?$", line):
            if scopes:
                scopes.pop()
            comment, i = [], i + 1
            continue
        if line.startswith("///"):
            comment.append(line[3:].removeprefix(" ") if not line[3:].startswith("   ") else line[3:])
            i += 1
            continue
        if not line.strip() or line.startswith(("#", "//", "}")) or not scopes:
            comment, i = [], i + 1
            continue
        start = i
        signature, members, i = declaration(lines, i)
        if signature.startswith("enum"):
            signature = re.sub(r"\s+", " ", re.sub(r"\s*//.*", "", "\n".join(lines[start:i]))).rstrip(";")
        if not any(hidden for hidden, _ in scopes) and signature:
            entity = described(signature, comment, members)
            if entity:
                entity["name"] = "".join(prefix for _, prefix in scopes) + entity["name"]
                found.append(entity)
        comment = []
    return found


def declaration(lines, i):
    """A declaration at the left margin without its body; the documented members of a class; the line after it."""
    head, depth, body = "", 0, []
    while i < len(lines):
        line = lines[i]
        code = re.sub(r"\s*//(?!/).*$", "", re.sub(r'"(?:\\.|[^"\\])*"', '""', line))
        if depth == 0:
            cut = body_start(code, head)
            head += (" " if head else "") + (code[:cut] if cut >= 0 else code).strip()
        elif depth >= 1:
            body.append(line)
        depth += code.count("{") - code.count("}")
        i += 1
        if depth <= 0 and (code.rstrip().endswith((";", "}")) or not code.strip()):
            break
    return re.sub(r"\s+", " ", head).strip().rstrip(";").strip(), body, i


def body_start(code, head):
    """Where the body or the initialiser begins: the first brace outside of parentheses."""
    depth = head.count("(") - head.count(")")
    for k, c in enumerate(code):
        if c == "(":
            depth += 1
        elif c == ")":
            depth -= 1
        elif c == "{" and depth == 0:
            return k
    return -1


def described(signature, comment, members):
    signature = re.sub(r"\[\[.*?\]\] ?", "", signature)
    if signature.count("(") > signature.count(")"):  # a lambda as the default of the last argument
        signature = signature[:signature.rindex(" = [")] + " = ...)" if " = [" in signature else signature
    bare = without_template(signature)
    if bare.startswith(("static_assert", "friend", "using namespace", "WEFT_", "explicit ", "return", "extern")):
        return None
    if m := re.match(r"(?:struct|class|enum class|enum) (\w+)(<.*>)?(?:[ :]|$)", bare):
        if bare.startswith("enum"):
            members = []
        elif m.group(2) or (not comment and not members):
            return None
        inside = documented_members(members, bare.startswith("class"))
        signature = wrapped(signature)
        if inside:
            signature += " {\n" + "\n".join(inside) + "\n}"
        return {"kind": "type", "name": m.group(1), "signature": signature, "comment": comment}
    if m := re.match(r"using (\w+) =", bare):
        return {"kind": "type", "name": m.group(1), "signature": signature, "comment": comment}
    if m := re.match(r"concept (\w+)", bare):
        return {"kind": "value", "name": m.group(1), "signature": signature, "comment": comment}
    if m := re.search(r"(operator\s?(?:\(\)|\[\]|[^\s(]+)|\w+)\s*\(", bare.replace("requires(", "requires (")):
        if re.match(r"(?:inline )?constexpr \w+ \w+ =|inline constexpr", bare) and "(" not in bare.split("=")[0]:
            m = None
        if m and bare[:m.start(1)].endswith("::"):
            return None  # a member, which its class declares
        if m and m.group(1) not in ("requires", "decltype", "noexcept"):
            return {"kind": "function", "name": m.group(1), "signature": wrapped(signature), "comment": comment}
    if m := re.match(r"inline (?:static )?(?:constexpr )?[\w:<>, ]+? (\w+)\s*(?:=|$)", bare):
        if comment:
            return {"kind": "value", "name": m.group(1), "signature": signature, "comment": comment}
    return None


def wrapped(signature):
    """The template head on a line of its own."""
    rest = without_template(signature)
    head = signature[:len(signature) - len(rest)].strip()
    return head.replace("> requires", ">\n  requires") + "\n" + rest if head else rest


def without_template(signature):
    """The declaration after its template head and requires clause."""
    text = signature.strip()
    while text.startswith("template"):
        depth = 0
        for k in range(text.index("<"), len(text)):
            depth += {"<": 1, ">": -1}.get(text[k], 0)
            if depth == 0:
                text = text[k + 1:].strip()
                break
        else:
            return text
    if text.startswith("requires"):
        term = r"(?:requires \{.*?\}|[\w:]+<[^>]*>|\((?:[^()]|\([^()]*\))*\))"
        text = re.sub(rf"^requires {term}(?:\s*&&\s*{term})*\s*", "", text)
    return text


def documented_members(lines, private):
    """The public data members and functions of a class, with their comments."""
    out, comment, i, depth = [], [], 0, 0
    while i < len(lines):
        line = lines[i]
        text = line.strip()
        if depth == 0 and re.match(r"(public|private|protected):", text):
            private, comment, i = not text.startswith("public"), [], i + 1
            continue
        if depth == 0 and re.match(r"  \S", line) and not private:
            if text.startswith("///"):
                comment.append("  " + text)
            elif text and not text.startswith(("//", "}", "static_assert", "friend", "using ", "#", "static constexpr long node_count")):
                head, end = member(lines, i)
                if keeps(head) and head.count("(") == head.count(")"):
                    out += comment + ["  " + head]
                comment, i = [], end
                continue
            else:
                comment = []
        depth += 0
        i += 1
    return out


def member(lines, i):
    head, depth = "", 0
    trailing = ""
    while i < len(lines):
        line = lines[i]
        note = re.search(r"\s(//(?!/).*)$", line)
        code = re.sub(r"\s*//(?!/).*$", "", line)
        quoted = re.sub(r'"(?:\\.|[^"\\])*"', '""', code)
        if depth == 0:
            cut = body_start(quoted, head)
            whole = cut < 0 or quoted.rstrip().endswith(("};", "{};")) or re.search(r"= .*\{.*\};$|\w\{.*\};$", quoted)
            head += (" " if head else "") + (code if whole else code[:cut]).strip()
            trailing = note.group(1) if note and not head.endswith(",") else trailing
        depth += quoted.count("{") - quoted.count("}")
        i += 1
        if depth <= 0 and (quoted.rstrip().endswith((";", "}")) or not quoted.strip()):
            break
    head = re.sub(r"\s+", " ", head).strip()
    head = re.sub(r"\) (const )?: [\w:<>]+\(.*$", r") \1", head).strip()
    return head.rstrip(";") + (";" if head else "") + ("  " + trailing if trailing else ""), i


def keeps(head):
    return bool(head) and not re.match(r"(struct|class|enum|template <.*> struct)\b", head) and " = delete" not in head
