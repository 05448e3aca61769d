"""The flags of SGLang's server: those that decide about memory with their units, the rest by their number of values."""

from plimsoll.box.fit.architecture import words
from plimsoll.box.fit.flags import Flag, Table, amount, count, fraction, positive, whole, word

FLAGS = (
    Flag("--model-path", "model", word, ("--model",)),
    Flag("--mem-fraction-static", "fraction of what is free before loading", fraction),
    Flag("--max-total-tokens", "tokens in the cache", positive),
    Flag("--max-running-requests", "requests", positive),
    Flag("--context-length", "tokens", positive),
    Flag("--chunked-prefill-size", "tokens a step", whole),
    Flag("--max-prefill-tokens", "tokens a step", positive),
    Flag("--kv-cache-dtype", "type of the cache", word),
    Flag("--dtype", "type of the weights", word),
    Flag("--quantization", "method", word),
    Flag("--load-format", "format", word),
    Flag("--revision", "revision", word),
    Flag("--tp-size", "ranks", positive, ("--tensor-parallel-size", "--tp")),
    Flag("--pp-size", "ranks", positive, ("--pipeline-parallel-size", "--pp")),
    Flag("--dp-size", "replicas", positive, ("--data-parallel-size", "--dp")),
    Flag("--nnodes", "machines", positive),
    Flag("--enable-hierarchical-cache", "switch", word, ("--enable-hicache",), switch=True),
    Flag("--hicache-size", "GB (10^9 bytes) for each rank", amount),
    Flag("--hicache-ratio", "times the cache on the GPU, for each rank", amount),
    Flag("--hicache-host-memory-fraction", "fraction of the free memory", fraction),
    Flag("--cpu-offload-gb", "GB for each rank", amount),
    Flag("--cuda-graph-max-bs", "sequences", positive, ("--cuda-graph-max-bs-decode",)),
    Flag("--disable-cuda-graph", "switch", word, switch=True),
    Flag("--page-size", "tokens a page", positive),
    Flag("--swa-full-tokens-ratio", "share", amount),
    Flag("--max-mamba-cache-size", "states", count),
    Flag("--mamba-full-memory-ratio", "share", amount),
    Flag("--mamba-ssm-dtype", "type of the states", word),
    Flag("--speculative-algorithm", "method", word, ("--speculative-algo",)),
    Flag("--speculative-draft-model-path", "model", word, ("--speculative-draft-model",)),
    Flag("--speculative-num-steps", "steps", positive),
    Flag("--speculative-eagle-topk", "branches", positive),
    Flag("--speculative-num-draft-tokens", "tokens", positive),
    Flag("--enable-lora", "switch", word, switch=True),
    Flag("--max-loras-per-batch", "adapters", positive),
    Flag("--enable-memory-saver", "switch", word, switch=True),
    Flag("--enable-dp-attention", "switch", word, switch=True),
)
_SWITCHES = words(
    """allow-auto-truncate checkpoint-engine-wait-weights-before-ready debug-cuda-graph delete-ckpt-after-loading
    disable-aiter-allreduce-fusion-in-decode disable-attn-tp-gather disable-chunked-prefix-cache
    disable-cuda-graph-padding disable-custom-all-reduce disable-decode-cuda-graph disable-fast-image-processor
    disable-flashinfer-autotune disable-hybrid-swa-memory disable-outlines-disk-cache disable-overlap-schedule
    disable-piecewise-cuda-graph disable-prefill-cuda-graph disable-priority-preemption disable-radix-cache
    disable-shared-experts-fusion disable-tokenizer-batch-decode enable-adaptive-dispatch-to-encoder
    enable-aiter-allreduce-fusion enable-cache-report enable-cudagraph-gc enable-custom-logit-processor
    enable-deterministic-inference enable-dp-lm-head enable-dynamic-batch-tokenizer enable-dynamic-chunking
    enable-eplb enable-ep-moe enable-flashinfer-allreduce-fusion enable-flexkv enable-fp32-lm-head enable-hisparse
    enable-http2 enable-int8-mamba-checkpoint enable-layerwise-nvtx-marker enable-lmcache enable-memory-saver
    enable-metrics enable-metrics-for-all-schedulers enable-mfu-metrics enable-mixed-chunk enable-mscclpp
    enable-multi-layer-eagle enable-multimodal enable-nccl-nvls enable-p2p-check enable-paged-experts enable-pdmux
    enable-piecewise-cuda-graph enable-prefill-cp enable-priority-scheduling enable-profile-cuda-graph
    enable-request-time-stats-logging enable-response-store enable-return-hidden-states enable-session-cache
    enable-single-batch-overlap enable-ssl-refresh enable-streaming-session enable-symm-mem enable-tf32-matmul
    enable-tokenizer-batch-encode enable-torch-compile enable-trace enable-two-batch-overlap enable-unified-memory
    enable-weights-cpu-backup encoder-only export-metrics-to-file flashinfer-mla-disable-ragged grpc-mode
    incremental-streaming-output is-embedding language-model-only language-only log-requests pre-warm-nccl
    prefill-only-disable-kv-cache quantize-and-serve return-input-ids return-output-ids show-time-cost
    skip-server-warmup skip-tokenizer-init sleep-on-idle smg-grpc-mode speculative-adaptive
    speculative-use-rejection-sampling strip-thinking-cache triton-attention-reduce-in-fp32 trust-remote-code
    trust-request-chat-template use-ray weight-loader-disable-mmap weight-loader-drop-cache-after-load
    weight-loader-prefetch-checkpoints"""
)
_VALUES = words(
    """admin-api-key api-key asr-max-buffer-seconds attention-backend attn-cp-size attn-dp-size base-gpu-id
    batch-notify-size bf16-gemm-backend chat-template completion-template config constrained-json-whitespace-pattern
    context-bucket cp-strategy crash-dump-folder cuda-graph-backend-decode cuda-graph-backend-prefill
    cuda-graph-config dcp-size decode-attention-backend decode-log-interval deepep-config deepep-mode
    default-chat-template-kwargs device disaggregation-bootstrap-port disaggregation-decode-enable-offload-kvcache
    disaggregation-ib-device disaggregation-mode disaggregation-transfer-backend dist-init-addr dist-timeout
    dllm-algorithm dllm-algorithm-config download-dir dsa-decode-backend dsa-prefill-backend
    dynamic-batch-tokenizer-batch-size ep ep-dispatch-algorithm ep-num-redundant-experts ep-size eplb-algorithm
    expert-parallel-size fastapi-root-path file-storage-path fp4-gemm-backend fp8-gemm-backend
    fp8-gemm-runner-backend fp4-gemm-runner-backend gc-threshold gpu-id-step grammar-backend grpc-port
    hf-chat-template-name hicache-host-memory-mode hicache-io-backend hicache-mem-layout hicache-storage-backend
    hicache-storage-backend-extra-config hicache-storage-prefetch-policy hicache-write-policy hisparse-config host
    init-expert-location int8-mamba-ckpt-size json-model-override-args kt-cpuinfer kt-method kt-num-gpu-experts
    kt-threadpool-count kt-weight-path kv-events-config limit-mm-data-per-request linear-attn-backend
    load-balance-method log-level log-level-http log-requests-format log-requests-level lora-backend
    lora-eviction-policy lora-target-modules mamba-backend mamba-radix-cache-strategy mamba-scheduler-strategy
    mamba-track-interval max-loaded-loras max-lora-rank max-queued-requests mm-attention-backend
    mm-feature-transport mm-process-config model-impl model-loader-extra-config modelopt-quant moe-a2a-backend
    moe-dense-tp-size moe-dp-size moe-runner-backend nccl-init-addr nccl-port node-rank num-continuous-decode-steps
    num-reserved-decode-tokens numa-node offload-group-size offload-mode otlp-traces-endpoint port
    pp-async-batch-depth pp-max-micro-batch-size preferred-sampling-params prefill-attention-backend
    prefill-max-requests quantization-param-path radix-cache-backend radix-eviction-policy random-seed
    reasoning-parser sampling-backend sampling-defaults schedule-conservativeness schedule-policy
    scheduler-recv-interval served-model-name soft-watchdog-timeout speculative-accept-threshold-acc
    speculative-accept-threshold-single speculative-attention-mode speculative-dflash-block-size
    speculative-draft-attention-backend speculative-draft-kv-cache-dtype speculative-draft-load-format
    speculative-draft-model-quantization speculative-draft-model-revision speculative-draft-window-size
    speculative-dspark-block-size speculative-moe-a2a-backend speculative-moe-runner-backend
    speculative-ngram-capacity speculative-ngram-max-bfs-breadth speculative-ngram-max-trie-depth
    speculative-token-map ssl-ca-certs ssl-certfile ssl-keyfile ssl-keyfile-password stream-interval
    tbo-token-distribution-threshold tokenizer-backend tokenizer-mode tokenizer-path tokenizer-worker-num
    tool-call-parser tool-server torch-compile-max-bs triton-attention-num-kv-splits warmups watchdog-timeout
    weight-version"""
)
_LISTS = words("custom-weight-loader cuda-graph-bs cuda-graph-bs-decode cuda-graph-bs-prefill lora-paths encoder-urls")
TABLE = Table(
    FLAGS,
    frozenset(f"--{name}" for name in _SWITCHES),
    frozenset(f"--{name}" for name in _VALUES),
    frozenset(f"--{name}" for name in _LISTS),
    abbreviates=True,
)
