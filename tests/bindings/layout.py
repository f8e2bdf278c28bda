"""layout.py - the layout that the C compiler gives the structs of forerun.h: {struct: {size, fields: [name, offset, size, declaration]}}.

The members are read from the header itself, so that a field that is appended there is missing in a binding until it is
added, and the tests report that. Run as a program it prints JSON, for the test of the Node binding.
"""

import json
import os
import re
import subprocess
import sys
import tempfile

HEADER = "include/forerun.h"


def members(body):
    """(name, declaration) of each member: pointers, arrays, functions, and several of one type."""
    for statement in filter(None, (s.strip() for s in body.split(";"))):
        statement = " ".join(statement.split())
        function = re.search(r"\(\*(\w+)\)\(", statement)
        if function:
            yield function.group(1), statement
            continue
        for declarator in statement.split(","):
            yield re.search(r"(\w+)\s*(\[[^\]]*\])?$", declarator.strip()).group(1), statement


def structs_of(header):
    text = re.sub(r"/\*.*?\*/", " ", header, flags=re.S)
    found = re.findall(r"typedef struct (\w+) \{([^{}]*)\} (\w+);", text)
    return {name: list(members(body)) for name, body, _ in found}


def layout(header=HEADER):
    """The layout of all structs of a header."""
    with open(header, encoding="utf-8") as f:
        structs = structs_of(f.read())
    lines = ['#include "forerun.h"', "#include <stdio.h>", "int main(void) {"]
    for name, fields in structs.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, _ in fields:
            lines.append(f'printf(".{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));')
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "layout.c"), os.path.join(folder, "layout")
        with open(source, "w", encoding="utf-8") as f:
            f.write("\n".join([*lines, "return 0;", "}", ""]))
        subprocess.run([*os.environ.get("CC", "cc").split(), "-I" + os.path.dirname(header), source, "-o", program], check=True)
        printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    result, fields = {}, []
    for line in printed.splitlines():
        name, *numbers = line.split()
        if not name.startswith("."):
            fields = []
            result[name] = {"size": int(numbers[0]), "fields": fields}
            declarations = dict(structs[name])
        else:
            fields.append([name[1:], int(numbers[0]), int(numbers[1]), declarations[name[1:]]])
    return result


def differences(compiled, bound, file):
    """The differences as sentences; bound: {struct: {"size", "fields": {name: (offset, size)}}}."""
    found = []
    for name, struct in compiled.items():
        mine = bound.get(name)
        if mine is None:
            if struct["fields"]:
                found.append(f"{name}: forerun.h has this struct, {file} has not: add it there")
            continue
        is_shifted = False
        for field, offset, size, declaration in struct["fields"]:
            if field not in mine["fields"]:
                found.append(
                    f"{name}.{field}: forerun.h has `{declaration};` at offset {offset} ({size} bytes), {file} has not: "
                    "add it to the struct there, in the header's order"
                )
            elif tuple(mine["fields"][field]) != (offset, size) and not is_shifted:
                is_shifted = True  # all that follow are, too
                found.append(
                    f"{name}.{field}: {file} has offset and size {tuple(mine['fields'][field])}, the C compiler "
                    f"{(offset, size)} for `{declaration};`: correct its type, or what stands before it"
                )
        known = {f[0] for f in struct["fields"]}
        found += [f"{name}.{f}: {file} has this field, forerun.h has not: remove it" for f in mine["fields"] if f not in known]
        if mine["size"] != struct["size"]:
            found.append(f"{name}: {file} has {mine['size']} bytes, the C compiler {struct['size']}")
    found += [f"{name}: {file} has this struct, forerun.h has not: remove it" for name in bound if name not in compiled]
    return found


if __name__ == "__main__":
    if len(sys.argv) > 2:  # BOUND.json FILE: compare
        with open(sys.argv[1], encoding="utf-8") as f:
            print("\n".join(differences(layout(), json.load(f), sys.argv[2])))
    else:
        print(json.dumps(layout()))
