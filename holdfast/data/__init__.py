"""From the user's files to arrays that the engine slices. Imports no torch; trains nothing and decides no settings.

    read            opens one file: `rawfile` and `magic` (bytes), `sniff` (its format), `csvrows`, `jsonrows`, `frames`
    detect          finds the task and the columns, from their names (`names`) and values (`profile`)
    examples        turns rows into examples; rows that cannot be used become `badrows`
    survey_dataset  reads a dataset once: `survey_table`, `survey_beir` or `survey_vectors`, with `split` and `checks`
    prepare         tokenizes it once and writes the arrays that `shards` describes

Start with `survey_dataset` and `prepare`.
"""
