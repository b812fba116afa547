"""Why a training job died or will die for memory, and what cures it; for scripts that know nothing of penstock.

Covers: supervising any command (run/), what it leaves on disk (evidence/), the verdict (verdict/), reading scripts
before they run (static/), patches (patch/), the environment (environment/), rehearsals (rehearse/), causes (causes/).
Does not cover: training itself (train/, guard/), the record of penstock's own runs (watch/).
"""
