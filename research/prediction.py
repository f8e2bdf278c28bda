#!/usr/bin/env python3
"""prediction.py - what the drafter `prediction` accepts where a share of the predicted words is wrong.

    forerun serve -m models/target.gguf -c 512 --port 8080 &
    python3 research/prediction.py 8080

Eight texts are generated without a prediction, a share of their words is replaced by other words of the same text, and
the result is sent as the prediction of the same request. The text must come out again."""
import json
import random
import sys
import urllib.request

PROMPTS = ["Once upon a time", "One day a cat", "The little dog", "Lily and Tom went", "There was a big tree",
           "Mom said that", "In the park", "A bird sat"]


def post(body):
    url = f"http://127.0.0.1:{sys.argv[1]}/v1/completions"
    return json.load(urllib.request.urlopen(url, json.dumps(body).encode()))


random.seed(1)
for share in (0, .05, .1, .2, 1):
    tokens = steps = drafted = accepted = 0
    for seed, prompt in enumerate(PROMPTS):
        options = {"prompt": prompt, "max_tokens": 200, "seed": seed, "temperature": .7, "draft": "none", "tree_budget": 16}
        text = post(options)["choices"][0]["text"]
        words = text.split(" ")
        changed = " ".join(random.choice(words) if random.random() < share else word for word in words)
        again = post({**options, "prediction": {"type": "content", "content": changed}})
        assert again["choices"][0]["text"] == text
        timings = again["timings"]
        tokens += timings["predicted_n"]
        steps += timings["n_steps"]
        drafted += timings["draft_n"]
        accepted += timings["draft_n_accepted"]
    print(f"{share:4.0%} replaced: {tokens / steps:5.2f} tokens per step, {drafted / steps:4.1f} drafted per step, "
          f"{accepted / drafted:3.0%} of them accepted")
