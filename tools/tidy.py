#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""House rules that a machine can check: layers, includes, calls, sizes, links (docs/STYLE.md).

    tools/tidy.py [--root DIR] [--compile-commands FILE]

One line a finding, `path:line: [rule] text`; exit code 1 when there is one.
"""

import argparse
import collections
import pathlib
import re
import subprocess
import sys

from compiled_files import compiled_files

FUNCTION_LINES = 70
HEADER_LINES = 400
SOURCE_LINES = 400
TEST_LINES = 600
CLASS_METHODS = 25
FOLDER_FILES = 40
COMMENT_COLUMNS = 100
CODE = (".h", ".cpp")
LICENSED = (".h", ".cpp", ".py", ".proto", ".cmake")
CODE_FOLDERS = ("src/", "include/")  # include/ has the public headers, which are installed
TEST_FILE = re.compile(r"_(test|bench|fuzz)\.cpp$")

Finding = collections.namedtuple("Finding", "path line rule text")


class Source:
    """One file: its text, its lines, and for C++ the code without comments and literals."""

    def __init__(self, root, path, of_parts):
        self.path = path
        self.text = (root / path).read_text(encoding="utf-8", errors="replace")
        self.lines = self.text.splitlines()
        self.is_code = path.endswith(CODE)
        self.code = without_comments(self.text) if self.is_code else ""
        self.code_lines = self.code.splitlines()
        parts = path.split("/")
        self.module = parts[2] if path.startswith(CODE_FOLDERS) and parts[1] == "cohort" and len(parts) > 3 else None
        if path.startswith("include/"):
            self.module = of_parts.get("/".join(parts[1:]), self.module)
        self.is_test = bool(TEST_FILE.search(path)) or parts[0] in ("tests", "bench")
        self.is_header = path.endswith(".h")
        self.is_public = self.is_header and path.startswith("include/") and self.module is not None

    def includes(self):
        """(line number, name as written) of each include; literals are blanked in `code`, so read the text."""
        for number, (line, code) in enumerate(zip(self.lines, self.code_lines), 1):
            found = re.match(r'\s*#\s*include\s*([<"][^>"]+[>"])', line)
            if found and code.lstrip().startswith("#"):
                yield number, found.group(1)

    def matches(self, pattern):
        """(line number, match) of each match of a pattern in the code; it may span lines."""
        for found in re.finditer(pattern, self.code, re.MULTILINE):
            yield self.code.count("\n", 0, found.start()) + 1, found


def without_comments(text):
    """C++ with comments and the contents of literals turned into blanks, lines kept."""
    token = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"(?P<d>[^(\s]*)\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"'
        r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'", re.DOTALL)

    def blank(found):
        word = found.group(0)
        keep = word[0] if word[0] in "\"'" else ""
        return keep + "\n" * word.count("\n") + keep if keep or "\n" in word else " "

    return token.sub(blank, text)


def layer_lines(text):
    """The contents of tools/layers.txt: {module: modules it may use}, {public header of another folder: its module}."""
    allowed, of_parts = {}, {}
    for line in text.splitlines():
        line = line.split("#")[0].strip()
        header, arrow, part = line.partition("->")
        module, _, deps = line.partition(":")
        if arrow:
            of_parts["cohort/" + header.strip()] = part.strip()
        elif line:
            allowed[module.strip()] = set(deps.split())
    return allowed, of_parts


# --- rules: each takes the tree and yields findings -----------------------------------------------
def layers(tree):
    used = set()
    for header in sorted(tree.of_parts):
        if not tree.has_public(header):
            yield Finding("tools/layers.txt", 1, "layers", f"'{header}' is no public header: remove it")
    for source in tree.code():
        for number, name in source.includes():
            parts = name.strip('<>"').split("/")
            if parts[0] != "cohort" or len(parts) < 3:
                continue
            target = tree.of_parts.get("/".join(parts), parts[1])
            if source.module and source.module != target:
                used.add((source.module, target))
            for text in refused_include(tree, source, parts, target):
                yield Finding(source.path, number, "layers", f"{text} ({name})")
    for module, targets in tree.allowed.items():
        for target in sorted(targets - {"*"}):
            if (module, target) not in used:
                yield Finding("tools/layers.txt", 1, "layers", f"'{module}' does not use '{target}': remove it")


def refused_include(tree, source, parts, target):
    own = source.module == target
    if source.module is not None and source.module not in tree.allowed:
        yield f"module '{source.module}' has no line in tools/layers.txt"
    elif source.module and not own and target != "testing":
        if not {target, "*"} & tree.allowed[source.module]:
            yield f"'{source.module}' may not use '{target}'"
    shows_tests = source.path.startswith("examples/") and tree.has_public("/".join(parts))
    is_fixture = source.path.endswith("_fixture.h")
    if target == "testing" and not (own or source.is_test or is_fixture or shows_tests):
        yield "only tests, their fixtures and benchmarks may use 'testing', and examples its public headers"
    # Tests of several processes join a group on a backend that they name.
    is_joined = parts[2] == "backends" and source.is_test and source.module is None
    if len(parts) > 3 and not own and target != "testing" and not is_joined and not tree.has_public("/".join(parts)):
        yield f"a sub-folder belongs to '{target}' alone"


def banned_includes(tree):
    everywhere = re.compile(r"[<\"](torch/torch\.h|ATen/ATen\.h|iostream)[>\"]")
    allowed = re.compile(r'<[a-z_0-9]+>$|<(ATen/core/Tensor\.h|c10/.*)>$|"cohort/.*"$')
    for source in tree.code():
        for number, name in source.includes():
            if source.is_header and everywhere.match(name):
                yield Finding(source.path, number, "includes", f"{name} is too costly for a header")
            elif source.is_public and name.startswith('"cohort/') and not tree.has_public(name.strip('"')):
                yield Finding(source.path, number, "includes", f"{name} is not installed with this public header")
            elif source.is_public and not allowed.match(name):
                yield Finding(source.path, number, "includes",
                              f"a public header includes only ATen/core/Tensor.h, c10, std and cohort, not {name}")
            elif (name.startswith('"') and not name.startswith(('"cohort/', '"bench/', '"tests/'))
                  and not name.endswith('.pb.h"') and not source.path.startswith("examples/")):
                yield Finding(source.path, number, "includes", f'write the whole path, "cohort/…", not {name}')


OWN_INCLUDES = {  # std names that a public header uses, and what declares them
    "chrono": "chrono", "cstddef": "byte nullptr_t", "cstdint": "int8_t int32_t int64_t uint8_t uint32_t uint64_t",
    "functional": "function", "initializer_list": "initializer_list", "map": "map",
    "memory": "shared_ptr unique_ptr weak_ptr make_shared make_unique", "optional": "optional nullopt",
    "ostream": "ostream", "span": "span", "string": "string to_string", "string_view": "string_view",
    "tuple": "tuple make_tuple apply tuple_size_v tuple_element_t", "variant": "variant monostate",
    "utility": "move forward pair exchange declval as_const index_sequence make_index_sequence", "vector": "vector",
}


def own_includes(tree):
    for source in tree.code():
        if not source.is_public:
            continue
        included = {name.strip("<>") for _, name in source.includes()}
        for header, names in OWN_INCLUDES.items():
            used = list(source.matches(rf"\bstd::({'|'.join(names.split())})\b"))
            if used and header not in included:
                yield Finding(source.path, used[0][0], "includes", f"std::{used[0][1].group(1)} is of <{header}>")


BANNED_CALLS = [  # (where, pattern, what to do)
    ("library", r"what\(\)[^;]*\.\s*(find|rfind|compare|starts_with|ends_with|contains)\s*\(",
     "decide by code(), origin() and cause(), never by the text of an error"),
    ("library", r"\b(strstr|strcmp|regex_search|regex_match)\s*\([^;]*what\(\)",
     "decide by code(), origin() and cause(), never by the text of an error"),
    ("library", r"std::(exit|abort|terminate|quick_exit)\s*\(|(^|[;{}])\s*(::)?(exit|abort)\s*\(",
     "nothing in the library ends the process; throw cohort::Error"),
    ("test", r"\b(sleep_for|sleep_until|usleep|nanosleep)\s*\(",
     "wait for an event or poll with a deadline; no sleeps in tests"),
    ("all", r"(?<![\w.>:])(LOG|CHECK)\s*\(|#\s*define\s+(LOG|CHECK)\b",
     "LibTorch defines LOG and CHECK; use log_info and COHORT_CHECK"),
]


def banned_calls(tree):
    for source in tree.code():
        is_library = source.path.startswith(CODE_FOLDERS) and not source.is_test
        for where, pattern, remedy in BANNED_CALLS:
            if where == "library" and not is_library or where == "test" and not source.is_test:
                continue
            for number, found in source.matches(pattern):
                first = found.group(0).strip(" ;{}\n").splitlines()[0]
                number += found.group(0)[: len(found.group(0)) - len(found.group(0).lstrip(" ;{}\n"))].count("\n")
                yield Finding(source.path, number, "calls", f"'{first}': {remedy}")


def without_directives(code):
    return re.sub(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", lambda f: "\n" * f.group(0).count("\n"), code, flags=re.M)


def functions(code):
    """(name, first line, last line) of each function body in blanked code. Heads are read, not parsed:
    a brace outside a function opens one when its head has a parameter list."""
    stack, head, start, line = [], "", 1, 1
    code = without_directives(code)
    for at, char in enumerate(code):
        if char == "\n":
            line += 1
        inside = bool(stack) and stack[-1][0] in ("function", "other")
        if char == "{":
            kind = "other" if inside else kind_of(head)
            stack.append((kind, head, start))
            if kind != "initialiser":
                head, start = "", line
        elif char == "}" and stack:
            kind, opened_head, opened = stack.pop()
            if kind == "function":
                yield name_of(opened_head), opened, line
            if kind == "initialiser" or kind == "other" and inside_head(code, at):
                head, start = opened_head + "{}", opened
            else:
                head, start = "", line
        elif char == ";" and not inside:
            head, start = "", line
        elif not inside:
            if not head.strip() and not char.isspace():
                start = line
            head += char


def inside_head(code, at):
    return bool(re.match(r"\s*[,{)]", code[at + 1 : at + 200]))


def kind_of(head):
    text = re.sub(r"\s+", " ", head).strip()
    text = re.sub(r"^(public|private|protected) ?: ?", "", text)
    if re.search(r"\b(namespace|extern)\b", text) and "(" not in text:
        return "scope"
    if re.match(r"(template ?<.*> ?)?(class|struct|union|enum)\b", text) and not text.endswith(")"):
        return "scope"
    if "(" not in text or re.search(r"(=|return)$", text) or text.count("(") != text.count(")"):
        return "other"
    if re.search(r"\) ?(noexcept)? ?:[^:].*[\w>]$", text):  # a constructor's list: `: first_{`
        return "initialiser"
    return "function"


def name_of(head):
    found = re.search(r"([\w:~]+|operator[^\w\s(]+) ?\(", head)
    return found.group(1) if found else "?"


def function_lengths(tree):
    ratchet = {}
    for entry in tree.read("tools/long_functions.txt").splitlines():
        if entry.strip() and not entry.startswith("#"):
            path, name, lines = entry.split()
            ratchet[path, name] = int(lines)
    for source in tree.code():
        for name, first, last in functions(source.code):
            length, limit = last - first + 1, ratchet.pop((source.path, name), FUNCTION_LINES)
            if length > limit:
                yield Finding(source.path, first, "length", f"{name} has {length} lines; at most {limit}")
            elif FUNCTION_LINES < limit and length < limit:
                yield Finding(source.path, first, "length",
                              f"{name} shrank to {length} lines: lower or remove it in tools/long_functions.txt")
    for path, name in ratchet:
        yield Finding("tools/long_functions.txt", 1, "length", f"{path} {name} is no more: remove the line")


def file_sizes(tree):
    folders = collections.Counter()
    for source in tree.sources:
        is_source = source.path.startswith(CODE_FOLDERS) and not source.is_test
        limit = HEADER_LINES if source.is_header else SOURCE_LINES if is_source else TEST_LINES
        if source.is_code and len(source.lines) > limit:
            yield Finding(source.path, limit, "size", f"{len(source.lines)} lines; split at {limit}")
        folders[str(pathlib.PurePosixPath(source.path).parent)] += source.is_code and not source.is_test
    for folder, count in folders.items():
        if count > FOLDER_FILES:
            yield Finding(folder, 1, "size", f"{count} source files without tests; split at {FOLDER_FILES}")


def outermost(code, start):
    """The text outside of inner braces in a body that begins before `start`; these end a statement."""
    depth, parentheses, text = 1, 0, ""
    for char in code[start:]:
        depth += (char == "{") - (char == "}")
        if depth == 0:
            break
        if depth == 1 and char not in "{}":
            parentheses += (char == "(") - (char == ")")
            text += char
        elif depth == 1 and char == "}" and parentheses == 0:
            text += ";"
    return text


def methods(name, body):
    """The names of the functions in the body of class `name`, but for constructors, destructor and assignment."""
    body = without_template_arguments(re.sub(r"operator\s*(<=>|<<|>>|<=|>=|<|>)", "operator_", body))
    body = re.sub(r"\b(public|private|protected)\s*:|\[\[[^\]]*\]\]", "", body)
    body = re.sub(r"\b(COHORT_\w+|decltype|noexcept|explicit|alignas)\s*\([^()]*\)", "", body)
    for statement in body.split(";"):
        found = re.match(r"\s*(?!\s|using|friend|typedef|static_assert|enum|class|struct|union|,)"
                         r"[^=(]*?(operator\s*[^\s\w(]+|operator\s*\(\s*\)|~?\b\w+)\s*\(", statement)
        if found and found.group(1).lstrip("~") not in (name, "operator="):
            yield found.group(1)


def class_sizes(tree):
    head = re.compile(r"(?<!enum )\b(?:class|struct)\s+(?:COHORT_\w+\s+)?([\w:]+)(?:\s+final)?\s*(?::(?!:)[^;{()]*)?{")
    for source in tree.code():
        if source.is_test or not source.path.startswith(CODE_FOLDERS):
            continue
        for found in head.finditer(source.code):
            name = found.group(1).split("::")[-1]
            count = len(list(methods(name, outermost(source.code, found.end()))))
            line = source.code.count("\n", 0, found.start()) + 1
            if count > CLASS_METHODS and REASON not in comment_above(source, line):
                yield Finding(source.path, line, "size", f"{name} has {count} methods; split at {CLASS_METHODS}, or say "
                                                         f"above it: {REASON} …")


def top_level_classes(code):
    """(namespace, name, line) of each class in blanked code that is neither nested nor in an unnamed namespace."""
    namespace = re.compile(r"\bnamespace(?:\s+([\w:]+))?\s*$")
    name = re.compile(r"\b(?<!enum )(?:class|struct)\s+(?:COHORT_\w+\s+)?(\w+)(?:\s+final)?\s*(?::(?!:)[^;{()]*)?$")
    scopes, line = [], 1  # "" is an unnamed namespace, or no namespace
    for piece in re.finditer(r"([^{};]*)([{};])", without_directives(code)):
        head, end = piece.groups()
        line += head.count("\n")
        if end == "{":
            opened, found = (namespace.search(head), name.search(head)) if all(scopes) else (None, None)
            if found:
                yield "::".join(scopes), found.group(1), line
            scopes.append(opened.group(1) or "" if opened else "")
        elif end == "}" and scopes:
            scopes.pop()


def class_names(tree):
    """One class name means one thing. The names that mean several today are in tools/same_names.txt, with how many."""
    entries = [line.split() for line in tree.read("tools/same_names.txt").splitlines() if line and not line.startswith("#")]
    ratchet = {name: int(count) for name, count in entries}
    places = collections.defaultdict(dict)
    for source in tree.code():
        if source.path.startswith(CODE_FOLDERS) and not source.is_test:
            for namespace, name, line in top_level_classes(source.code):
                places[name].setdefault(namespace, (source.path, line))
    for name, of_namespaces in places.items():
        count, limit = len(of_namespaces), ratchet.pop(name, 1)
        path, line = max(of_namespaces.values())
        if count > limit:
            yield Finding(path, line, "names", f"'{name}' is a class of {', '.join(sorted(of_namespaces))}; rename one")
        elif count < limit:
            yield Finding("tools/same_names.txt", 1, "names", f"'{name}' has {count} namespaces: lower or remove it")
    for name in ratchet:
        yield Finding("tools/same_names.txt", 1, "names", f"'{name}' is no more: remove it")


REASON = "Many methods because"


def comment_above(source, line):
    """The comment above a declaration, as one line of text."""
    first = line - 1
    while first > 0 and re.match(r"\s*(//|template\b)", source.lines[first - 1]):
        first -= 1
    return " ".join(text.strip().lstrip("/ ") for text in source.lines[first : line - 1])


def comment_widths(tree):
    """clang-format leaves comments as they are, since it takes code in them for prose."""
    for source in tree.code():
        for number, (line, code) in enumerate(zip(source.lines, source.code_lines), 1):
            if len(line) > COMMENT_COLUMNS and not code.strip() and line.lstrip().startswith("//"):
                yield Finding(source.path, number, "size", f"a comment line has at most {COMMENT_COLUMNS} columns")


FRAGMENT = r"(?:Of|What|Whose|Those|That of)\b"
SCRIPTS = (".py", ".cmake", "CMakeLists.txt")


def comments(source):
    """(line number, text, whether it continues the line before) of each line with a comment, for scripts also docstrings."""
    if source.path.endswith((*CODE, ".proto")):
        comment = re.compile(r'((?:[^"/]|"(?:\\.|[^"\\])*"|/(?!/))*)//+ ?(.*)')
    elif source.path.endswith(SCRIPTS) or source.path in ("dev", ".ci/run"):
        comment = re.compile(r'(\s*)(?:#|""") ?(.*)')
    else:
        return
    is_comment = False
    for number, line in enumerate(source.lines, 1):
        found = comment.match(line)
        stands_alone = bool(found) and not found.group(1).strip()
        if found:
            yield number, found.group(2), is_comment and stands_alone
        is_comment = stands_alone and bool(found.group(2).strip()) and not re.match(r"#!|.*SPDX-License", line)


def comment_sentences(tree):
    """A fragment such as "Of the last group." leaves the reader to guess the noun that it speaks of."""
    inside, begin = re.compile(rf"[.:;?!][\"')]* {FRAGMENT}"), re.compile(rf"\s*(?:[-*] )?{FRAGMENT}")
    for source in tree.sources:
        before = ""
        for number, text, continues in comments(source):
            begins = not continues or before.rstrip("\"') ").endswith((".", ":", ";", "?", "!"))
            if inside.search(text) or begins and begin.match(text):
                yield Finding(source.path, number, "sentences", "begin the sentence with its subject, not with Of, What, "
                                                                "Whose, Those or That of")
            before = text


def names(tree):
    for source in tree.code():
        stem = pathlib.PurePosixPath(source.path).stem
        if re.search(r"(^|_)(utils?|common|helpers?|misc|managers?)(_|$)", stem):
            yield Finding(source.path, 1, "names", "name the one thing it holds")
        if not re.fullmatch(r"[a-z0-9_]+", stem):
            yield Finding(source.path, 1, "names", "files are in snake_case")


def licence_heads(tree):
    for source in tree.sources:
        if not source.path.endswith(LICENSED) or not source.lines:
            continue
        first = source.lines[1 if source.lines[0].startswith("#!") and len(source.lines) > 1 else 0]
        if "SPDX-License-Identifier: Apache-2.0" not in first:
            yield Finding(source.path, 1, "licence", "the first line is the SPDX line, Apache-2.0")


def unreached_files(tree):
    """Sources that no target compiles and headers that nothing includes."""
    built = tree.compiled()
    included = {name.strip('<>"') for source in tree.code() for _, name in source.includes()}
    # Where a library is missing, without_it.cpp is compiled in place of its neighbours, and only there.
    replaced = {pathlib.Path(source.path).parent for source in tree.code() if "/without_" in source.path}
    for source in tree.code():
        if not source.path.startswith(CODE_FOLDERS):
            continue
        if source.is_header:
            installed = source.path.partition("/")[2]
            if installed not in included and installed != "cohort/cohort.h":
                yield Finding(source.path, 1, "unreached", "nothing includes this header")
        elif built is not None and source.path not in built and not re.search(r"_(bench|fuzz)\.cpp$", source.path) \
                and pathlib.Path(source.path).parent not in replaced:
            yield Finding(source.path, 1, "unreached", "no target compiles this file")
        elif not tree.has_build_file(source.path):
            yield Finding(source.path, 1, "unreached", "no CMakeLists.txt above it makes a module of it")


def option_structs(code):
    """(offset of the body, body without what stands in inner braces) of each struct of options in blanked code."""
    for found in re.finditer(r"\bstruct\s+(?:COHORT_API\s+)?\w*Options(?:\s*:[^{;]*)?\s*{", code):
        depth, body = 1, ""
        for char in code[found.end():]:
            depth += (char == "{") - (char == "}")
            if depth == 0:
                break
            outside = depth == 1 and char != "}"
            body += char if outside or char == "\n" else "=" if char == "}" and depth == 1 else " "
        yield found.end(), body


def without_template_arguments(text):
    while (shorter := re.sub(r"<[^<>]*>", lambda f: "\n" * f.group(0).count("\n"), text)) != text:
        text = shorter
    return text


def option_defaults(tree):
    """g++ warns of each member that a user's designated initialisers leave out, but for those with a default one."""
    for source in tree.code():
        if not source.is_header or not source.path.startswith("include/"):
            continue
        for start, body in option_structs(source.code):
            line = source.code.count("\n", 0, start) + 1
            for statement in re.split(r"(?<=;)", without_template_arguments(body)):
                found = re.fullmatch(r"\s*(?!using|static|friend)[\w:*&\s]+\s(\w+);", statement)
                if found:
                    number = line + statement[: found.start(1)].count("\n")
                    yield Finding(source.path, number, "options", f"'{found.group(1)}' needs a default initialiser, as = {{}}")
                line += statement.count("\n")


def umbrella(tree):
    """cohort.h has all of the public interface: a header that it does not reach is one that users do not find."""
    headers = {source.path[len("include/"):]: source for source in tree.code()
               if source.is_public and source.module != "testing" or source.path == "include/cohort/cohort.h"}
    if "cohort/cohort.h" not in headers:
        return
    reached, left = set(), ["cohort/cohort.h"]
    while left:
        header = left.pop()
        if header in headers and header not in reached:
            reached.add(header)
            left += [name.strip('<>"') for _, name in headers[header].includes()]
    for header in sorted(set(headers) - reached):
        yield Finding(headers[header].path, 1, "umbrella", "cohort.h does not include this public header")


def markdown_links(tree):
    for source in tree.sources:
        if not source.path.endswith(".md"):
            continue
        text = re.sub(r"```.*?```", lambda f: "\n" * f.group(0).count("\n"), source.text, flags=re.DOTALL)
        for found in re.finditer(r"\]\(([^)\s]+)\)", text):
            link = found.group(1)
            if re.match(r"[a-z+]+:|#", link):
                continue
            target = tree.root / pathlib.PurePosixPath(source.path).parent / link.split("#")[0]
            if not target.exists():
                yield Finding(source.path, text.count("\n", 0, found.start()) + 1, "links", f"no file '{link}'")


def stray_words(tree):
    marks = re.compile(r"\b(FIX" r"ME|X" r"XX)\b|\bTO" r"DO\b(?!\([a-z]+\):)")
    machine = re.compile(r"(?<![\w.$}~-])/(work|home/\w+|root|tmp/(b|w))/")
    for source in tree.sources:
        for number, line in enumerate(source.lines, 1):
            if marks.search(line) and not source.path.endswith(".md"):
                yield Finding(source.path, number, "words", "a mark without a kind; write TODO(kind): or do it")
            if machine.search(line):
                yield Finding(source.path, number, "words", "a path of one machine")


OUTPUT = re.compile(r"(^|/)(out|core|core\.\d+|nohup\.out|a\.out|vgcore\.\d+|[^/]+\.log)$")


def tracked_outputs(tree):
    """Files that a run has written and somebody has committed."""
    for path in tree.tracked():
        if OUTPUT.search(path) and (tree.root / path).is_file():
            yield Finding(path, 1, "outputs", "a run's output is no source: git rm it")


RULES = (layers, banned_includes, own_includes, banned_calls, function_lengths, file_sizes, class_sizes, class_names,
         comment_widths, comment_sentences, names, licence_heads, unreached_files, option_defaults, umbrella, markdown_links,
         stray_words, tracked_outputs)


class Tree:
    """The files of a checkout (what git would not ignore; without git, everything but build folders)."""

    TEXT = (*LICENSED, ".md", ".txt", ".json", ".yaml", ".yml", ".in")

    def __init__(self, root, compile_commands=None):
        self.root = pathlib.Path(root).resolve()
        self.compile_commands = compile_commands
        self.allowed, self.of_parts = layer_lines(self.read("tools/layers.txt"))
        self.sources = [Source(self.root, path, self.of_parts) for path in sorted(self.paths())]

    def listed(self, *kinds):
        """The files that git lists; without git, everything but build folders."""
        listing = subprocess.run(["git", "-C", self.root, "ls-files", "-z", *kinds],
                                 capture_output=True, text=True) if (self.root / ".git").exists() else None
        if listing and listing.returncode == 0:
            return listing.stdout.split("\0")
        return [path.relative_to(self.root).as_posix() for path in self.root.rglob("*")
                if not {"build", ".git", ".cache"} & set(path.relative_to(self.root).parts)]

    def tracked(self):
        return sorted(set(self.listed("--cached")))

    def paths(self):
        found = self.listed("--cached", "--others", "--exclude-standard")
        wanted = lambda path: path.endswith(self.TEXT) or path in ("dev", ".ci/run")
        return [path for path in set(found) if path and wanted(path) and (self.root / path).is_file()]

    def code(self):
        return (source for source in self.sources if source.is_code)

    def read(self, path):
        file = self.root / path
        return file.read_text() if file.exists() else ""

    def compiled(self):
        if not self.compile_commands:
            return None
        return {file.relative_to(self.root).as_posix() for file, _ in compiled_files(self.compile_commands)
                if file.is_relative_to(self.root)}

    def has_public(self, name):
        return (self.root / "include" / name).is_file()

    def has_build_file(self, path):
        folders = pathlib.PurePosixPath(path).parents
        return any("cohort_module(" in self.read(folder / "CMakeLists.txt") for folder in folders)


def findings(tree):
    return sorted(finding for rule in RULES for finding in rule(tree))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--compile-commands", help="also check that each source is in this file")
    arguments = parser.parse_args()
    found = findings(Tree(arguments.root, arguments.compile_commands))
    for finding in found:
        print(f"{finding.path}:{finding.line}: [{finding.rule}] {finding.text}")
    if found:
        print(f"tidy: {len(found)} findings; docs/STYLE.md has the reasons", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
