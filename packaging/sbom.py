#!/usr/bin/env python3
"""sbom.py VERSION TIME ARCHIVE - writes the bill of materials of a release as SPDX 2.3 in JSON: the source archive, and the libraries that
the static programs contain, in the versions of the Debian packages that are installed here. The same input gives the same bytes."""
import datetime
import hashlib
import json
import subprocess
import sys

# The Debian package, its licence, and whether it is part of libforerun or of the program only.
LIBRARIES = [
    ("libpcre2-dev", "BSD-3-Clause", "libforerun"),
    ("libxxhash-dev", "BSD-2-Clause", "libforerun"),
    ("libutf8proc-dev", "MIT AND Unicode-DFS-2015", "libforerun"),
    ("librandom123-dev", "BSD-3-Clause", "libforerun"),
    ("libjansson-dev", "MIT", "the program"),
    ("libdivsufsort-dev", "MIT", "the program"),
    ("libedit-dev", "BSD-3-Clause", "the program"),
    ("libbsd-dev", "BSD-3-Clause", "the static program"),
    ("libmd-dev", "BSD-3-Clause", "the static program"),
    ("libncurses-dev", "MIT", "the static program"),
    ("libevent-dev", "BSD-3-Clause", "the program"),
    ("libssl-dev", "Apache-2.0", "the program"),
    ("libzstd-dev", "BSD-3-Clause", "the program"),
    ("libc6-dev", "LGPL-2.1-or-later", "the static program"),
]


def installed_version(package):
    query = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True, check=False)
    return query.stdout if query.returncode == 0 and query.stdout else "NOASSERTION"


def package(identifier, name, version, licence, comment, **more):
    return {"SPDXID": f"SPDXRef-{identifier}", "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False, "licenseConcluded": licence, "licenseDeclared": licence, "copyrightText": "NOASSERTION",
            "comment": comment, **more}


def main(version, time, archive):
    with open(archive, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    created = datetime.datetime.fromtimestamp(int(time), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    packages = [package("forerun", "forerun", version, "Apache-2.0", "the source archive",
                        checksums=[{"algorithm": "SHA256", "checksumValue": digest}])]
    relationships = [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-forerun"}]
    for name, licence, part in LIBRARIES:
        found = installed_version(name)
        reference = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                     "referenceLocator": f"pkg:deb/debian/{name}@{found}"}
        packages.append(package(name, name, found, licence, f"linked with {part}",
                                **({} if found == "NOASSERTION" else {"externalRefs": [reference]})))
        relationships.append({"spdxElementId": "SPDXRef-forerun", "relationshipType": "DEPENDS_ON",
                              "relatedSpdxElement": f"SPDXRef-{name}"})
    document = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"forerun-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/forerun-{version}-{digest[:32]}",
        "creationInfo": {"created": created, "creators": ["Tool: packaging/sbom.py"]},
        "packages": packages, "relationships": relationships,
    }
    json.dump(document, sys.stdout, indent=1)
    print()


main(*sys.argv[1:])
