#!/usr/bin/env python3
"""redrafter_packing.py - how many tokens a step verifies where the candidates of a beam share rows.

    draft=redrafter:file=models/redrafter.gguf
    forerun serve -m models/target.gguf --port 8080 $(for w in 2 4 8 12 32; do echo --draft $draft,width=$w; done) &
    python3 research/redrafter_packing.py 8080 bench/prompts/questions.jsonl $draft

Fig. 6, left, of ReDrafter's paper: for each width, percentiles and the mean of the packed tokens of a step, beside the
tokens that the candidates have without packing."""
import json
import sys
import urllib.request

LENGTH = 5  # tokens of a candidate: the drafter's default


def packed_tokens(port, draft, width, question):
    """Yields the number of drafted tokens of each step of an answer."""
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": 64, "temperature": 0, "stream": True,
            "draft": f"{draft},width={width}", "tree_budget": width * LENGTH, "forerun": {"tokens": True, "trees": True}}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    for line in urllib.request.urlopen(request):
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:])["choices"]:
                yield from (len(step["tree"]) - 1 for step in choice.get("forerun", {}).get("steps", []))


port, path, draft = sys.argv[1:]
with open(path, encoding="utf-8") as file:
    questions = [record.get("prompt") or record["turns"][0] for record in map(json.loads, file)]
print("| width | tokens of the beam | 1st percentile | median | 99th percentile | mean | removed |\n|---|---|---|---|---|---|---|")
for width in (2, 4, 8, 12, 32):
    counts = sorted(n for question in questions for n in packed_tokens(port, draft, width, question) if n > 0)
    low, median, high = (counts[int(share * (len(counts) - 1))] for share in (0.01, 0.5, 0.99))
    mean = sum(counts) / len(counts)
    print(f"| {width} | {width * LENGTH} | {low} | {median} | {high} | {mean:.1f} | {1 - mean / (width * LENGTH):.0%} |")
