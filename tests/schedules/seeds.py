"""The nights of the test suite: few, and between them they meet every trouble, most of them early."""

SEEDS = (56, 179, 463, 396, 96, 252, 70, 108, 509, 511, 991, 551)
