"""The flags of `vllm serve`: those that decide about memory with their units, the rest by their number of values."""

from plimsoll.box.fit import sizes
from plimsoll.box.fit.architecture import words
from plimsoll.box.fit.flags import Flag, Table, amount, count, fraction, human, mapping, positive, word


def _length(text: str) -> object:
    """Read a context: a count, or -1 or auto for what fits."""
    if text.strip().lower() in ("auto", "-1"):
        return "auto"
    number = sizes.human(text)
    return number or None


def _compilation(text: str) -> object:
    """Read JSON, or the bare level that older versions took."""
    return int(text) if text in ("0", "1", "2", "3") else mapping(text)


FLAGS = (
    Flag("--model", "model", word),
    Flag("--gpu-memory-utilization", "fraction of the whole pool", fraction),
    Flag("--kv-cache-memory-bytes", "bytes for each GPU", human, ("--kv-cache-memory",)),
    Flag("--max-model-len", "tokens", _length),
    Flag("--max-num-seqs", "sequences", positive),
    Flag("--max-num-batched-tokens", "tokens a step", human),
    Flag("--kv-cache-dtype", "type of the cache", word),
    Flag("--dtype", "type of the weights", word),
    Flag("--quantization", "method", word, ("-q",)),
    Flag("--tensor-parallel-size", "ranks", positive, ("-tp", "--tp")),
    Flag("--pipeline-parallel-size", "ranks", positive, ("-pp", "--pp")),
    Flag("--data-parallel-size", "replicas", positive, ("-dp", "--dp")),
    Flag("--data-parallel-size-local", "replicas on this machine", count, ("-dpl",)),
    Flag("--nnodes", "machines", positive, ("-n",)),
    Flag("--distributed-executor-backend", "backend", word),
    Flag("--block-size", "tokens a block", positive),
    Flag("--num-gpu-blocks-override", "blocks", positive),
    Flag("--swap-space", "GiB for each GPU", amount),
    Flag("--cpu-offload-gb", "GiB for each GPU", amount),
    Flag("--kv-offloading-size", "GiB over all ranks", amount),
    Flag("--mm-processor-cache-gb", "GiB for each process", amount),
    Flag("--speculative-config", "JSON", mapping, ("-sc", "--spec-config")),
    Flag("--compilation-config", "JSON", _compilation, ("-cc",)),
    Flag("--kv-transfer-config", "JSON", mapping),
    Flag("--hf-overrides", "JSON", mapping),
    Flag("--load-format", "format", word),
    Flag("--revision", "revision", word),
    Flag("--download-dir", "directory", word),
    Flag("--mamba-cache-dtype", "type of the states", word),
    Flag("--mamba-ssm-cache-dtype", "type of the recurrent states", word),
    Flag("--max-loras", "adapters", positive),
    Flag("--max-lora-rank", "rank", positive),
    Flag("--enforce-eager", "switch", word, switch=True),
    Flag("--enable-lora", "switch", word, switch=True),
    Flag("--enable-sleep-mode", "switch", word, switch=True),
    Flag("--enable-prefix-caching", "switch", word, switch=True),
    Flag("--no-enable-prefix-caching", "switch", word, switch=True),
    Flag("--enable-chunked-prefill", "switch", word, switch=True),
    Flag("--no-enable-chunked-prefill", "switch", word, switch=True),
    Flag("--disable-hybrid-kv-cache-manager", "switch", word, switch=True),
    Flag("--enable-expert-parallel", "switch", word, ("-ep",), switch=True),
    Flag("--language-model-only", "switch", word, switch=True),
)
_YES_OR_NO = words(
    """aggregate-engine-logging allow-credentials allow-deprecated-quantization async-scheduling calculate-kv-scales
    cudagraph-metrics data-parallel-external-lb data-parallel-hybrid-lb disable-cascade-attn
    disable-chunked-mm-input disable-custom-all-reduce disable-fastapi-docs disable-frontend-multiprocessing
    disable-hybrid-kv-cache-manager disable-log-requests disable-log-stats disable-mm-preprocessor-cache
    disable-nccl-for-dp-synchronization disable-sliding-window disable-uvicorn-access-log enable-auto-tool-choice
    enable-chunked-prefill enable-dbo enable-elastic-ep enable-eplb enable-expert-parallel
    enable-flashinfer-autotune enable-force-include-usage enable-layerwise-nvtx-tracing enable-log-deltas
    enable-log-outputs enable-log-requests enable-logging-iteration-details enable-lora enable-mfu-metrics
    enable-mm-embeds enable-mm-processor-stats enable-multimodal-encoder-data-parallel enable-offline-docs
    enable-prefix-caching enable-prompt-embeds enable-prompt-tokens-details enable-reasoning
    enable-request-id-headers enable-server-load-tracking enable-sleep-mode enable-ssl-refresh
    enable-tokenizer-info-endpoint enable-tower-connector-lora enforce-eager exclude-tools-when-tool-choice-none
    fail-on-environ-validation fully-sharded-loras grpc h11 headless interleave-mm-strings kv-cache-metrics
    kv-sharing-fast-prefill language-model-only log-error-stack mm-encoder-only multi-step-stream-outputs
    no-scheduler-reserve-full-isl ray-workers-use-nsight return-tokens-as-token-ids scheduler-reserve-full-isl
    skip-mm-profiling skip-tokenizer-init specialize-active-lora tokens-only trust-remote-code
    trust-request-chat-template use-tqdm-on-load use-v2-block-manager"""
)
_VALUES = words(
    """additional-config all2all-backend allowed-local-media-path allowed-media-domains allowed-origins api-key
    api-server-count attention-backend attention-config block-hash-algo chat-template chat-template-content-format
    code-revision collect-detailed-traces config config-format convert cp-kv-cache-interleave-size
    cpu-offload-params cudagraph-capture-sizes data-parallel-address data-parallel-backend data-parallel-rank
    data-parallel-rpc-port data-parallel-start-rank dbo-decode-token-threshold dbo-prefill-token-threshold
    dcp-comm-backend decode-context-parallel-size default-chat-template-kwargs default-mm-loras device
    disable-log-stats-interval distributed-timeout-seconds ec-transfer-config eplb-config expert-placement-strategy
    generation-config guided-decoding-backend guided-decoding-disable-any-whitespace h11-max-header-count
    h11-max-incomplete-event-size hf-config-path hf-token host ignore-patterns io-processor-plugin jit-monitor-mode
    kernel-config kv-cache-dtype-skip-layers kv-cache-metrics-sample kv-events-config kv-offloading-backend
    limit-mm-per-prompt log-config-file logits-processor-pattern logits-processors logprobs-mode
    long-prefill-token-threshold lora-dtype lora-modules mamba-block-size mamba-cache-mode master-addr master-port
    max-cpu-loras max-cudagraph-capture-size max-log-len max-logprobs max-long-partial-prefills
    max-num-partial-prefills max-parallel-loading-workers max-seq-len-to-capture media-io-kwargs middleware
    mm-encoder-attn-backend mm-encoder-tp-mode mm-processor-cache-type mm-processor-kwargs
    mm-shm-cache-max-object-size-mb model-impl model-loader-extra-config moe-backend node-rank num-lookahead-slots
    offload-backend offload-group-size offload-num-in-group offload-params offload-prefetch-step optimization-level
    otlp-traces-endpoint override-attention-dtype override-generation-config override-pooler-config performance-mode
    pooler-config port preemption-mode prefill-context-parallel-size prefix-caching-hash-algo profiler-config
    pt-load-map-location reasoning-config reasoning-parser reasoning-parser-plugin response-role root-path
    rope-scaling rope-theta runner safetensors-load-strategy scheduler-cls scheduling-policy seed
    show-hidden-metrics-for-version shutdown-timeout ssl-ca-certs ssl-cert-reqs ssl-certfile ssl-ciphers ssl-keyfile
    stream-interval structured-outputs-config task tokenizer tokenizer-mode tokenizer-revision tool-call-parser
    tool-parser-plugin tool-server ubatch-size uds uvicorn-log-level video-pruning-rate weight-transfer-config
    worker-cls worker-extension-cls"""
)
TABLE = Table(
    FLAGS,
    frozenset(f"{no}{name}" for name in _YES_OR_NO for no in ("--", "--no-")) | words("-O0 -O1 -O2 -O3"),
    frozenset({f"--{name}" for name in _VALUES} | {"-O", "-cc"}),
    frozenset({"--served-model-name", "--lora-modules", "--allowed-origins", "--middleware"}),
    abbreviates=True,
    dashes=True,
)
