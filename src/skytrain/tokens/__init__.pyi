from .batch import IGNORED_TARGET as IGNORED_TARGET, Batch as Batch, as_batch as as_batch
from .byte_level import train_bpe as train_bpe
from .chat import Message as Message, conversation_tokens as conversation_tokens
from .chat_files import ChatFiles as ChatFiles, has_tokens as has_tokens
from .chat_rows import ChatRows as ChatRows
from .convert import (
    TokenFiles as TokenFiles,
    TokenFormat as TokenFormat,
    split_documents as split_documents,
    write_token_files as write_token_files,
)
from .datamodule import BatchSettings as BatchSettings, TokenDataModule as TokenDataModule
from .decoding import StreamDecoder as StreamDecoder
from .hf_files import (
    HUB_PATTERNS as HUB_PATTERNS,
    TEMPLATE_FILE as TEMPLATE_FILE,
    has_tokenizer_files as has_tokenizer_files,
)
from .inspection import (
    LengthStatistics as LengthStatistics,
    Sample as Sample,
    check_hashes as check_hashes,
    document_lengths as document_lengths,
    length_statistics as length_statistics,
    sample_documents as sample_documents,
)
from .manifest import (
    Manifest as Manifest,
    Shard as Shard,
    find_manifest as find_manifest,
)
from .opening import (
    TrainingSources as TrainingSources,
    check_validation as check_validation,
    find_training_data as find_training_data,
    open_file_split as open_file_split,
    open_mixture as open_mixture,
    open_training_data as open_training_data,
)
from .packing import PackedSplit as PackedSplit
from .parquet_tokens import ParquetTokens as ParquetTokens
from .prepared import (
    NotPrepared as NotPrepared,
    Prepared as Prepared,
    data_hashes as data_hashes,
    find_prepared as find_prepared,
    find_prepared_for as find_prepared_for,
    missing_files as missing_files,
    open_prepared as open_prepared,
    tokens_folder as tokens_folder,
    trained_tokenizer_id as trained_tokenizer_id,
    trained_tokenizer_key as trained_tokenizer_key,
)
from .reader import TokenSplit as TokenSplit
from .shards import Split as Split, dividing_fraction as dividing_fraction, split_of as split_of
from .spark_shards import (
    SparkTokens as SparkTokens,
    spark_tokens as spark_tokens,
    write_shards_on_spark as write_shards_on_spark,
)
from .tokenizers import (
    Tokenizer as Tokenizer,
    describe_begin as describe_begin,
    has_tokenizer as has_tokenizer,
    is_stored as is_stored,
    load_tokenizer_folder as load_tokenizer_folder,
    open_tokenizer as open_tokenizer,
    read_tokenizer_settings as read_tokenizer_settings,
    store_tokenizer as store_tokenizer,
    stored_chat_template as stored_chat_template,
    stored_vocab_size as stored_vocab_size,
    with_chat_template as with_chat_template,
)
from .tokenizing import TokenizedSlice as TokenizedSlice, tokenize_corpus as tokenize_corpus
from .writer import ShardWriter as ShardWriter
