"""The flags of llama-server: those that decide about memory with their units, the rest by their number of values."""

from plimsoll.box.fit.architecture import words
from plimsoll.box.fit.flags import Flag, Table, on_or_off, positive, whole, word


def _layers(text: str) -> object:
    """Read a number of layers, or `all` or `auto`."""
    return text if text in ("all", "auto") else whole(text)


FLAGS = (
    Flag("--model", "file", word, ("-m",), "LLAMA_ARG_MODEL"),
    Flag("--hf-repo", "repository", word, ("-hf", "-hfr"), "LLAMA_ARG_HF_REPO"),
    Flag("--hf-file", "file", word, ("-hff",), "LLAMA_ARG_HF_FILE"),
    Flag("--model-url", "address", word, ("-mu",), "LLAMA_ARG_MODEL_URL"),
    Flag("--docker-repo", "repository", word, ("-dr",), "LLAMA_ARG_DOCKER_REPO"),
    Flag("--mmproj", "file", word, ("-mm",), "LLAMA_ARG_MMPROJ"),
    Flag("--ctx-size", "tokens over all slots", whole, ("-c",), "LLAMA_ARG_CTX_SIZE"),
    Flag("--batch-size", "tokens", positive, ("-b",), "LLAMA_ARG_BATCH"),
    Flag("--ubatch-size", "tokens a step", positive, ("-ub",), "LLAMA_ARG_UBATCH"),
    Flag("--parallel", "slots", whole, ("-np",), "LLAMA_ARG_N_PARALLEL"),
    Flag("--cache-type-k", "type of the keys", word, ("-ctk",), "LLAMA_ARG_CACHE_TYPE_K"),
    Flag("--cache-type-v", "type of the values", word, ("-ctv",), "LLAMA_ARG_CACHE_TYPE_V"),
    Flag("--gpu-layers", "layers", _layers, ("-ngl", "--n-gpu-layers"), "LLAMA_ARG_N_GPU_LAYERS"),
    Flag("--cache-ram", "MiB", whole, ("-cram",), "LLAMA_ARG_CACHE_RAM"),
    Flag("--ctx-checkpoints", "checkpoints for each slot", whole, ("-ctxcp", "--swa-checkpoints"),
         "LLAMA_ARG_CTX_CHECKPOINTS"),
    Flag("--moe-cache-mib", "MiB", whole, (), "LLAMA_ARG_MOE_CACHE_MIB"),
    Flag("--n-cpu-moe", "layers", whole, ("-ncmoe",), "LLAMA_ARG_N_CPU_MOE"),
    Flag("--flash-attn", "on, off or auto", word, ("-fa",), "LLAMA_ARG_FLASH_ATTN", bare="on"),
    Flag("--fit", "on or off", on_or_off, ("-fit",), "LLAMA_ARG_FIT"),
    Flag("--fit-target", "MiB for each device", word, ("-fitt",), "LLAMA_ARG_FIT_TARGET"),
    Flag("--load-mode", "mode", word, ("-lm",), "LLAMA_ARG_LOAD_MODE"),
    Flag("--kv-unified-per-slot", "tokens", positive, (), "LLAMA_ARG_KV_UNIFIED_PER_SLOT"),
    Flag("--model-draft", "file", word, ("-md", "--spec-draft-model"), "LLAMA_ARG_SPEC_DRAFT_MODEL"),
    Flag("--hf-repo-draft", "repository", word, ("-hfd", "-hfrd", "--spec-draft-hf"), "LLAMA_ARG_SPEC_DRAFT_HF_REPO"),
    Flag("--ctx-size-draft", "tokens", whole, ("-cd",)),
    Flag("--cache-type-k-draft", "type of the keys", word, ("-ctkd", "--spec-draft-type-k")),
    Flag("--cache-type-v-draft", "type of the values", word, ("-ctvd", "--spec-draft-type-v")),
    Flag("--spec-type", "method", word, (), "LLAMA_ARG_SPEC_TYPE"),
    Flag("--models-preset", "file", word, (), "LLAMA_ARG_MODELS_PRESET"),
    Flag("--models-dir", "directory", word, (), "LLAMA_ARG_MODELS_DIR"),
    Flag("--models-max", "models", whole, (), "LLAMA_ARG_MODELS_MAX"),
    Flag("--kv-unified", "switch", on_or_off, ("-kvu",), "LLAMA_ARG_KV_UNIFIED", switch=True),
    Flag("--no-kv-unified", "switch", word, ("-no-kvu",), switch=True),
    Flag("--swa-full", "switch", on_or_off, (), "LLAMA_ARG_SWA_FULL", switch=True),
    Flag("--no-mmap", "switch", word, (), switch=True),
    Flag("--mmap", "switch", word, (), switch=True),
    Flag("--mlock", "switch", word, (), switch=True),
    Flag("--cpu-moe", "switch", on_or_off, ("-cmoe",), "LLAMA_ARG_CPU_MOE", switch=True),
    Flag("--no-kv-offload", "switch", word, ("-nkvo",), switch=True),
    Flag("--embedding", "switch", on_or_off, ("--embeddings",), "LLAMA_ARG_EMBEDDINGS", switch=True),
)  # fmt: skip
_SWITCHES = words(
    """-ag -bs -cb -cl -cmoed -e -h -kvo -no-ag -nocb -nr -sp -v --agent --backend-sampling --cache-idle-slots
    --cache-list --cache-prompt --check-tensors --completion-bash --cont-batching --context-shift --cors-credentials
    --cpu-moe-draft --escape --help --ignore-eos --jinja --kv-offload --log-disable --log-jsonl --log-prefix
    --log-timestamps --log-verbose --lora-init-without-apply --metrics --mmproj-auto --mmproj-offload
    --models-autoload --no-agent --no-cache-idle-slots --no-cache-prompt --no-cont-batching --no-context-shift
    --no-cors-credentials --no-escape --no-host --no-jinja --no-log-prefix --no-log-timestamps --no-mmproj
    --no-mmproj-auto --no-mmproj-offload --no-models-autoload --no-op-offload --no-perf --no-prefill-assistant
    --no-reasoning-preserve --no-repack --no-slots --no-ui --no-warmup --no-webui --offline --op-offload --perf
    --prefill-assistant --props --reasoning-preserve --repack --rerank --reranking --reuse-port --skip-chat-parsing
    --slots --spec-default --spec-draft-cpu-moe --special --spm-infill --ui --ui-mcp-proxy --verbose
    --verbose-prompt --version --warmup --webui --webui-mcp-proxy"""
)
_VALUES = words(
    """-C -Cb -Cd -Cr -Crb -a -cms -dev -devd -dt -fitc -hft -j -jf -l -lcd -lcs -lv -lzm -mg -mmdev -mmu -n -ncffn
    -ncmoed -ngld -ot -otd -r -rea -s -sm -sps -t -tb -tbd -td -to -ts --adaptive-decay --adaptive-target --alias
    --api-key --api-key-file --api-prefix --cache-reuse --chat-template --chat-template-file --chat-template-kwargs
    --checkpoint-min-step --control-vector --control-vector-scaled --cors-headers --cors-methods --cors-origins
    --cpu-mask --cpu-mask-batch --cpu-range --cpu-range-batch --cpu-strict --cpu-strict-batch --defrag-thold
    --device --device-draft --draft --draft-max --draft-min --draft-n --draft-n-min --draft-p-min --draft-p-split
    --dry-allowed-length --dry-base --dry-multiplier --dry-penalty-last-n --dry-sequence-breaker --dynatemp-exp
    --dynatemp-range --embd-normalize --fit-ctx --frequency-penalty --gpu-layers-draft --grammar --grammar-file
    --hf-token --host --image-max-tokens --image-min-tokens --json-schema --json-schema-file --keep --lazy-mode
    --log-colors --log-file --log-prompts-dir --log-verbosity --logit-bias --lookup-cache-dynamic
    --lookup-cache-static --lora --lora-scaled --main-gpu --mcp-servers-config --mcp-servers-json --media-path
    --min-p --mirostat --mirostat-ent --mirostat-lr --mmproj-device --mmproj-url --mtmd-batch-max-tokens --n-cpu-ffn
    --n-cpu-moe-draft --n-gpu-layers-draft --n-predict --numa --override-kv --override-tensor
    --override-tensor-draft --path --poll --poll-batch --pooling --port --predict --presence-penalty --prio
    --prio-batch --reasoning --reasoning-budget --reasoning-budget-message --reasoning-effort --reasoning-format
    --repeat-last-n --repeat-penalty --reverse-prompt --rope-freq-base --rope-freq-scale --rope-scale --rope-scaling
    --rpc --sampler-seq --samplers --sampling-seq --seed --sleep-idle-seconds --slot-prompt-similarity
    --slot-save-path --spec-draft-device --spec-draft-n-max --spec-draft-n-min --spec-draft-n-cpu-moe
    --spec-draft-ngl --spec-draft-p-min --spec-draft-p-split --spec-draft-sampling --spec-draft-threads
    --spec-ngram-mod-n-match --spec-ngram-mod-n-max --spec-ngram-mod-n-min --spec-ngram-size-m --spec-ngram-size-n
    --split-mode --sse-ping-interval --ssl-cert-file --ssl-key-file --tags --temp --temperature --tensor-split
    --threads --threads-batch --threads-batch-draft --threads-draft --threads-http --timeout --tools --tools-runtime
    --top-k --top-n-sigma --top-nsigma --top-p --typical --typical-p --ui-config --ui-config-file --verbosity
    --video-fps --webui-config --webui-config-file --xtc-probability --xtc-threshold --yarn-attn-factor
    --yarn-beta-fast --yarn-beta-slow --yarn-ext-factor --yarn-orig-ctx"""
)
TABLE = Table(FLAGS, _SWITCHES, _VALUES, words("--control-vector-layer-range"), dashes=True)
