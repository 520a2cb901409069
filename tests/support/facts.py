"""Multiple-choice items about common knowledge, which a small pretrained model answers better than by chance."""

from __future__ import annotations

import random
from typing import Any

TABLES = {
    "The capital of {} is": (
        "France Paris, Germany Berlin, Italy Rome, Spain Madrid, Japan Tokyo, China Beijing, Russia Moscow, Egypt Cairo, "
        "Greece Athens, Portugal Lisbon, Austria Vienna, Poland Warsaw, Hungary Budapest, Norway Oslo, Sweden Stockholm, "
        "Finland Helsinki, Denmark Copenhagen, Ireland Dublin, Belgium Brussels, Turkey Ankara, Iran Tehran, Iraq Baghdad, "
        "Cuba Havana, Peru Lima, Chile Santiago, Canada Ottawa, Kenya Nairobi, Ukraine Kyiv, Thailand Bangkok, "
        "Vietnam Hanoi, Indonesia Jakarta, Australia Canberra, Nepal Kathmandu, Lebanon Beirut, Syria Damascus, "
        "Jordan Amman, Romania Bucharest, Bulgaria Sofia, Croatia Zagreb, Serbia Belgrade"
    ),
    "The opposite of {} is": (
        "hot cold, big small, up down, left right, day night, black white, good bad, happy sad, fast slow, light dark, "
        "open closed, early late, old young, rich poor, strong weak, high low, long short, wet dry, hard soft, full empty, "
        "first last, true false, war peace, love hate, push pull, buy sell, win lose, start finish, inside outside, "
        "above below, before after, winter summer, north south, east west, thick thin, loud quiet, clean dirty, "
        "heavy light, sharp dull, noisy silent"
    ),
    "People who live in {} mostly speak": (
        "France French, Germany German, Italy Italian, Spain Spanish, Japan Japanese, Russia Russian, Greece Greek, "
        "Portugal Portuguese, Poland Polish, Hungary Hungarian, Norway Norwegian, Sweden Swedish, Finland Finnish, "
        "Denmark Danish, Turkey Turkish, England English, Korea Korean, Vietnam Vietnamese, Thailand Thai, China Chinese, "
        "Ukraine Ukrainian, Romania Romanian, Bulgaria Bulgarian, Croatia Croatian, Serbia Serbian, Iceland Icelandic, "
        "Brazil Portuguese, Mexico Spanish, Argentina Spanish, Egypt Arabic, Iraq Arabic, Syria Arabic, Austria German, "
        "Australia English, Ireland English, Cuba Spanish, Peru Spanish, Chile Spanish, Israel Hebrew, Iran Persian"
    ),
    "A {} is a kind of": (
        "dog animal, rose flower, oak tree, hammer tool, violin instrument, apple fruit, carrot vegetable, salmon fish, "
        "eagle bird, ant insect, car vehicle, shirt garment, diamond gem, chair furniture, pistol weapon, tulip flower, "
        "pine tree, guitar instrument, banana fruit, trout fish, sparrow bird, beetle insect, truck vehicle, sofa furniture, "
        "rifle weapon, saw tool, daisy flower, maple tree, flute instrument, pear fruit, shark fish, hawk bird, wasp insect, "
        "bus vehicle, table furniture, sword weapon, wrench tool, lily flower, piano instrument, peach fruit"
    ),
    "The number that comes after {} is": (
        "one two, two three, three four, four five, five six, six seven, seven eight, eight nine, nine ten, ten eleven, "
        "eleven twelve, twelve thirteen, thirteen fourteen, fourteen fifteen, fifteen sixteen, sixteen seventeen, "
        "seventeen eighteen, eighteen nineteen, nineteen twenty, twenty twenty-one, thirty thirty-one, forty forty-one, "
        "fifty fifty-one, sixty sixty-one, seventy seventy-one, eighty eighty-one, ninety ninety-one, twenty-two twenty-three, "
        "thirty-three thirty-four, forty-four forty-five, fifty-five fifty-six, sixty-six sixty-seven, "
        "seventy-seven seventy-eight, eighty-eight eighty-nine, twenty-five twenty-six, thirty-six thirty-seven, "
        "forty-seven forty-eight, fifty-eight fifty-nine, sixty-eight sixty-nine, ninety-eight ninety-nine"
    ),
}


def fact_records() -> list[dict[str, Any]]:
    """Four choices each, of which the wrong ones are right answers to others of the same kind."""
    made, records = random.Random(0), []
    for template, listed in TABLES.items():
        pairs = [pair.split() for pair in listed.split(", ")]
        answers = sorted({answer for _, answer in pairs})
        for thing, answer in pairs:
            choices = [answer, *made.sample([each for each in answers if each != answer], 3)]
            made.shuffle(choices)
            named = [f"{each}." for each in choices]
            records.append({"context": template.format(thing), "choices": named, "label": choices.index(answer)})
    return records
