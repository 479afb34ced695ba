"""A data file cannot be parsed.

What you see: "Error tokenizing data. C error: Expected 7 fields in line 2658, saw 8", "JSON parse error", "An error
occurred while generating the dataset", or a UnicodeDecodeError.
Why: stray separators and quotes, a JSON array where lines were expected, values that change type between rows, an
encoding other than UTF-8, or an empty or truncated file.
What we do: name each bad row with its line, and train on the remaining rows only if asked to.
"""

from holdfast.core.plan import Remedy
from holdfast.hazards import Hazard, proves, seen, suggests

# A JSON or text error in these places concerns settings, the network or weights, not data.
# Broken JSON or bytes occur everywhere; they concern data only if something else says so.
_DATA = seen(
    "log",
    r"(?i)data_?sets?\b|data_?loader|load_(?:data|json|corpus|examples)|read_(?:csv|json|jsonl|examples|data|lines)|\.(?:jsonl|csv|tsv|conll)\b"
    r"|json\.loads\((?:line|l|row|x|s|item|f\.readline)\b|for (?:line|row|l) in|readlines\(|annotation|corpus|train(?:ing)?[_-]?(?:data|file|set|json)|(?:train|dev|val|test)\w*\.(?:json|txt)"
    r"|preprocess|pandas|_generate_(?:tables|examples)|datasets[/\\]|get_(?:train|data)|getitem|examples",
)
_NOT_DATA = (
    seen(
        "log",
        r"torch[/\\]serialization\.py|torch\.load\(|requests[/\\]models\.py|response\.json\(\)|get_config_dict|_dict_from_json_file",
    ),
    seen(
        "log",
        r"(?i)(?:json\.loads?|open)\([^\n]*(?:config|cfg|trainer_state|tokenizer)|deepspeed|vocab|self\.conf|trainer_state\.json'|hf_argparser\.py|configparser\.py",
    ),
    seen(
        "log", r"setup\.py\"|site-packages[/\\]pip[/\\]|subprocess\.py|sys\.stdout|check_output\(|yaml[/\\]reader\.py"
    ),
)

HAZARD = Hazard(
    slug="dataset-parse",
    title="a data file could not be parsed",
    kind="error",
    signs=(
        proves(
            "log",
            r"Error tokenizing data|pandas\.errors\.(?:ParserError|EmptyDataError)|No columns to parse from file|CParserError",
        ),
        proves(
            "log",
            r"ArrowInvalid: (?:JSON parse error|CSV parse error|[Ss]traddling object|Parquet (?:magic|file)|Could not open Parquet|Not an Arrow file|Failed to parse)",
        ),
        proves(
            "log",
            r"JSON parse error: |CSV parse error: |Failed to (?:read|load)(?: JSON)?(?: from)? file [^\n]* with error|Parquet magic bytes not found",
        ),
        proves(
            "log",
            r"[Aa]n error occurred while generating the dataset|DatasetGenerationError|DatasetGenerationCastError",
        ),
        proves(
            "log",
            r"Couldn't cast(?: array of type)?|datasets\.table\.CastError|All the data files must have the same columns",
        ),
        proves(
            "log",
            r"Not able to read records in the JSON file|Expected object or value|Trailing data$|Unmatched ''?\"' when",
        ),
        proves(
            "log",
            r"_csv\.Error|csv\.Error|line contains NUL|field larger than field limit|new-line character seen in unquoted field",
        ),
        proves("log", r"Conversion failed for column|ArrowTypeError|Unsupported cast from \w+ to \w+ using function"),
        proves("log", r"Expected \d+ (?:fields|columns)(?: in line \d+)?, (?:saw|got) \d+"),
        suggests("log", r"ArrowInvalid|ArrowNotImplementedError: Unsupported cast"),
        suggests(
            "log",
            r"JSONDecodeError|Expecting (?:value|property name|',' delimiter|':' delimiter)|Extra data: line \d+ column|Unterminated string starting at|Invalid control character at",
            also=(_DATA,),
            unless=_NOT_DATA,
        ),
        suggests(
            "log", r"UnicodeDecodeError|codec can't decode byte|UnicodeError: UTF-16", also=(_DATA,), unless=_NOT_DATA
        ),
        # Without a frame that says what was read, data is the most likely.
        suggests("error", r"SyntaxError: Non-UTF-8 code starting with"),
        suggests("error", r"^UnicodeDecodeError", unless=(seen("frame", r"."), seen("log", r"\n"), *_NOT_DATA)),
        suggests(
            "error",
            r"NonMatchingSplitsSizesError|NonMatchingChecksumError|ExpectedMoreSplits|DataFilesNotFoundError|EmptyDatasetError|Couldn't infer the same data file format",
        ),
        suggests(
            "error",
            r"could not convert string to float|invalid literal for int\(\)",
            also=(
                seen(
                    "log",
                    r"read_csv|loadtxt|genfromtxt|csv\.|pandas[/\\]|\.(?:csv|tsv)\b|line\.(?:strip|split)|\.split\(",
                ),
            ),
        ),
        suggests(
            "error", r"(?:ElementTree\.)?ParseError: (?:not well-formed|no element found|mismatched tag|syntax error)"
        ),
        suggests(
            "error",
            r"LibsndfileError|Error opening [^\n]*\.(?:wav|flac|mp3|ogg|m4a)|NoBackendError|moov atom not found|InvalidDataError|EBML header"
            r"|(?i:(?:failed|unable) to (?:open|decode|load|read) (?:the )?(?:input|audio|video|image)\b)",
        ),
        # OpenCV returns nothing for an image that it cannot read, and fails when the nothing is used.
        suggests("error", r"Assertion failed\) !\w*(?:src|ssize|img|image)\w*\.empty\(\)"),
        # A row whose text is missing or a number.
        suggests("error", r"TextEncodeInput must be|text input must be of type `?str"),
        suggests(
            "error",
            r"UnidentifiedImageError|cannot identify image file|image file is truncated|broken data stream when reading image|Truncated File Read",
        ),
        suggests(
            "error",
            r"(?i)(?:line|row|record|sample) #?\d+[^\n]{0,40}(?:malformed|invalid|could not be parsed|cannot be parsed|wrong number of (?:columns|fields))",
        ),
        suggests(
            "frame",
            r"_generate_tables|_prepare_split_single|read_csv \(|_read_json|raw_decode|pyarrow",
            unless=(seen("error", r"."), *_NOT_DATA),
        ),
    ),
    remedies=(
        Remedy(
            "list the bad rows with their line numbers",
            command="holdfast survey DATA",
            cost="none",
        ),
        Remedy(
            "pass the real separator, quoting and encoding",
            command="pd.read_csv(path, sep='\\t', quoting=csv.QUOTE_NONE, encoding='utf-8-sig')",
        ),
        Remedy("put one record on each line", command="jq -c '.[]' data.json > data.jsonl"),
        Remedy("convert the file to UTF-8", command="iconv -f GBK -t UTF-8 data.csv > data_utf8.csv"),
        Remedy(
            "skip bad rows",
            command="pd.read_csv(path, on_bad_lines='warn')",
            cost="those rows are not trained on; count them first",
            keeps=False,
        ),
    ),
    sources=(
        "kakaobrain/kor-nlu-datasets#2",
        "huggingface/datasets#6460",
        "zai-org/GLM-4#591",
        "xiaoachen98/Open-LLaVA-NeXT#31",
        "siyuanzhao/automated-essay-grading#3",
        "huggingface/datasets#6364",
    ),
    matches=(
        "soundfile.LibsndfileError: Error opening 'clips/0007.wav': Format not recognised.",
        "cv2.error: OpenCV(4.10.0) resize.cpp:4155: error: (-215:Assertion failed) !ssize.empty() in function 'resize'",
        "TypeError: TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]",
        "pandas.errors.ParserError: Error tokenizing data. C error: Expected 7 fields in line 2658, saw 8",
        "pyarrow.lib.ArrowInvalid: JSON parse error: Column() changed from object to array in row 0",
        "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset",
        "    data = [json.loads(line) for line in open('train.jsonl')]\njson.decoder.JSONDecodeError: Expecting ',' delimiter: line 1 column 83 (char 82)",
        "UnicodeDecodeError: 'gbk' codec can't decode byte 0x80 in position 237: illegal multibyte sequence",
        "TypeError: Couldn't cast array of type\nstruct<a: string>\nto\n{'a': Value(dtype='int64', id=None)}",
        "_csv.Error: line contains NUL",
        "ValueError: Expected object or value",
        "pyarrow.lib.ArrowTypeError: (\"Expected bytes, got a 'int' object\", 'Conversion failed for column label with type object')",
        "    text = open('train.csv').read()\nUnicodeDecodeError: 'utf-8' codec can't decode byte 0xe9 in position 10: invalid continuation byte",
        "SyntaxError: Non-UTF-8 code starting with '\\xe9' in file notes.py on line 2, but no encoding declared",
        "datasets.data_files.EmptyDatasetError: The directory at data/ doesn't contain any data files",
        "    rows = [float(x) for x in line.split(',')]\nValueError: could not convert string to float: 'n/a'",
        "xml.etree.ElementTree.ParseError: mismatched tag: line 41, column 4",
        "PIL.UnidentifiedImageError: cannot identify image file 'cats/0007.jpg'",
        "ValueError: line 812: malformed record",
        '  File "/venv/lib/python3.11/site-packages/datasets/packaged_modules/json/json.py", line 140, in _generate_tables\n',
    ),
    near_misses=(
        "KeyError: 'json_dialogue'",
        "KeyError: 'response '",
        '  File "transformers/configuration_utils.py", line 650, in get_config_dict\njson.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)',
        "  File \"/venv/lib/python3.8/site-packages/torch/serialization.py\", line 762, in _legacy_load\nUnicodeDecodeError: 'ascii' codec can't decode byte 0xd3 in position 10",
        "ValueError: Columns ['text'] not in the dataset.",
        "FileNotFoundError: [Errno 2] No such file or directory: 'train.csv'",
    ),
)
