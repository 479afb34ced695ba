"""From the user's files to arrays that the engine slices. Imports no torch; trains nothing and decides no settings.

    read            opens one file of rows: `rawfile` and `magic` (bytes), `sniff` (its format), `csvrows`, `jsonrows`
    detect          finds the task and the columns, from their names (`names`) and values (`profile`)
    examples        turns rows into examples; rows that cannot be used become `badrows`
    sources         adapters for rows, BEIR folders and vectors: rows in, checked examples out (`split`, `checks`)
    survey_dataset  opens a source, and reads it once to say what it holds
    prepare         reads it once, tokenizes it and writes the arrays that `shards` describes

Start with `survey_dataset` and `prepare`.
"""
