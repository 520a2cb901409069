"""`skytrain bench serve`: how much load an endpoint bears, and what its tokens cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from .chat import KeyFile, ModelName
from .options import Json

Url = Annotated[str, typer.Option(metavar="URL", help="The endpoint: http://127.0.0.1:8000.")]
Concurrency = Annotated[str, typer.Option(metavar="LIST", help="Requests at once, one level after another.")]
Requests = Annotated[int, typer.Option(min=1, metavar="N", help="Requests to time at each level, after a warm-up.")]
AnswerTokens = Annotated[int, typer.Option("--max-tokens", min=1, metavar="N", help="Tokens of an answer.")]
PromptWords = Annotated[int, typer.Option(min=1, metavar="N", help="Words of a prompt made from real text.")]
Prompts = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Prompts: text with one a line, or JSON lines with `prompt`. Default: pieces of Python's documentation.",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="The same seed sends the same prompts in the same order.")]
Price = Annotated[
    float | None,
    typer.Option("--usd-per-hour", min=0.0, metavar="USD", help="Price of the machine.", show_default=False),
]
Instance = Annotated[
    str | None,
    typer.Option(metavar="TYPE", help="EC2 instance type, for its price: g5.xlarge.", show_default=False),
]
Region = Annotated[str, typer.Option(metavar="NAME", help="Region of that price.")]
MarketName = Annotated[Literal["on-demand", "spot"], typer.Option("--market", help="Market of that price.")]
Timeout = Annotated[
    float, typer.Option(min=0.1, metavar="SECONDS", help="A request fails when no part of its answer came for so long.")
]
IgnoreEos = Annotated[
    bool, typer.Option(help="Answers of full length, by an option that vLLM has; other servers may refuse it.")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FOLDER", help="Write results.json and load.svg there.", show_default=False),
]


def bench_serve(
    url: Url = "http://127.0.0.1:8000",
    api_key_file: KeyFile = None,
    model: ModelName = None,
    concurrency: Concurrency = "1,2,4,8",
    requests: Requests = 64,
    max_tokens: AnswerTokens = 64,
    prompt_words: PromptWords = 128,
    prompts: Prompts = None,
    seed: Seed = 0,
    usd_per_hour: Price = None,
    instance: Instance = None,
    region: Region = "us-east-1",
    market: MarketName = "on-demand",
    ignore_eos: IgnoreEos = True,
    timeout: Timeout = 300.0,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Time an endpoint under growing load.

    Streams answers at each concurrency and prints requests and tokens per second, the time to the first token, between
    tokens and in all (50th, 95th and 99th percentile), errors by kind, and dollars per million generated tokens.
    Requests that fail are counted, and make the exit code 1.

    \b
    Examples:
      skytrain bench serve --url http://127.0.0.1:8000 --concurrency 1,4,16 --out load
      skytrain bench serve --instance g5.xlarge --prompts prompts.jsonl --requests 200
    """
    from ..pipelines import bench_serve as pipeline
    from ..serving import Endpoint, choose_api_key
    from .console import print_table, reporter

    if usd_per_hour is None and instance is not None:
        usd_per_hour = pipeline.instance_price(instance, region, market)
    levels = pipeline.parse_concurrencies(concurrency)
    test = pipeline.LoadTest(
        concurrencies=levels,
        requests=requests,
        max_tokens=max_tokens,
        prompt_words=prompt_words,
        prompts=prompts,
        model=model,
        seed=seed,
        usd_per_hour=usd_per_hour,
        ignore_eos=ignore_eos,
    )
    key = choose_api_key(api_key_file, new=False)
    if out is not None:
        pipeline.make_folder(out)
    with reporter() as console:
        results = pipeline.bench_serve(Endpoint(url, key.value if key else None, timeout), test, console)
    if out is not None:
        pipeline.write_results(results, out)
    if as_json:
        print(json.dumps(results.to_json()))
    else:
        print(f"{results.model} at {results.url}: {requests} requests a level, {max_tokens} tokens an answer")
        print_table(pipeline.load_rows(results))
        if out is not None:
            print(f"results: {out / 'results.json'}" + (", load.svg" if (out / "load.svg").is_file() else ""))
    raise SystemExit(1 if results.failed else 0)
