"""Log lines as the kernel and daemons print them, made up for the tests, and short ways to read them."""

# ruff: noqa: E501  # log lines are as long as they are printed

from collections.abc import Iterable, Mapping
from typing import Any

from plimsoll.box.incident import document, reader, timeline
from plimsoll.box.incident.model import Event, Findings

NOW_S = 1_796_000_000.0
"""2026-11-30T00:53:20Z."""

SOFT = (
    "NVRM: GPU0 nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from "
    "_memdescAllocInternal(pMemDesc) @ mem_desc.c:{}"
)
HARD = "NVRM: _iovaspaceCreateMappingDataFromMemDesc: failed to allocate 0x2a0048 bytes for IOVA mapping metadata"
SUMMARY = (
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
    "task_memcg=/system.slice/llama.service,task=llama-server,pid=4242,uid=1000"
)
KILLED = (
    "Out of memory: Killed process 4242 (llama-server) total-vm:131072000kB, anon-rss:2097152kB, file-rss:1024kB, "
    "shmem-rss:0kB, UID:1000 pgtables:40960kB oom_score_adj:200"
)
REAPED = "oom_reaper: reaped process 4242 (llama-server), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB"
HUNG = "INFO: task jbd2/nvme0n1p2-:812 blocked for more than {} seconds."
OWNER = "INFO: task jbd2/nvme0n1p2-:812 <writer> blocked on an rw-semaphore likely owned by task VLLM::EngineCor:4242 <writer>"


def report(adj: int = 200, *, order: int = 0, total_pages: int = 32_000_000, rss: int = 526_336) -> list[str]:
    """The whole report of a kill on a box of 122 GiB whose memory a driver holds, as Linux 6.x prints it."""
    return [
        f"dashboard-serv invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order={order}, oom_score_adj=0",
        "CPU: 3 UID: 0 PID: 1701 Comm: dashboard-serv Tainted: G           O        6.17.0-1032-nvidia #32-Ubuntu PREEMPT",
        "Tainted: [O]=OOT_MODULE",
        "Hardware name: ASUSTeK COMPUTER INC. GX10/GX10, BIOS GX10.0101 01/02/2026",
        "Call trace:",
        " show_stack+0x20/0x38 (C)",
        " dump_header+0x48/0x1f0",
        " oom_kill_process+0x1f8/0x3f0",
        " out_of_memory+0x120/0x5a8",
        " filemap_fault+0x5c8/0xb30",
        "Mem-Info:",
        "active_anon:100000 inactive_anon:20000 isolated_anon:0",
        " active_file:800 inactive_file:900 isolated_file:0",
        " unevictable:3000 dirty:2 writeback:0",
        " slab_reclaimable:10000 slab_unreclaimable:40000",
        " mapped:900 shmem:5000 pagetables:6000",
        " sec_pagetables:0 bounce:0",
        " kernel_misc_reclaimable:0",
        " free:11000 free_pcp:100 free_cma:0",
        "Node 0 active_anon:400000kB inactive_anon:80000kB active_file:3200kB inactive_file:3600kB unevictable:12000kB kernel_stack:8000kB pagetables:24000kB all_unreclaimable? yes",
        "Node 0 Normal free:41000kB boost:0kB min:45000kB low:170000kB high:300000kB reserved_highatomic:0KB present:130000000kB managed:127400000kB mlocked:0kB",
        "lowmem_reserve[]: 0 0 0",
        "Node 0 Normal: 100*4kB (UME) 20*8kB (UM) 5*16kB (U) 0*32kB 0*64kB 0*128kB 0*256kB 0*512kB 0*1024kB 0*2048kB 0*4096kB = 640kB",
        "Node 0 hugepages_total=0 hugepages_free=0 hugepages_surp=0 hugepages_size=2048kB",
        "7700 total pagecache pages",
        "Free swap  = 11000000kB",
        "Total swap = 16000000kB",
        f"{total_pages} pages RAM",
        "0 pages HighMem/MovableOnly",
        "100000 pages reserved",
        "Tasks state (memory values in pages):",
        "[  pid  ]   uid  tgid total_vm      rss rss_anon rss_file rss_shmem pgtables_bytes swapents oom_score_adj name",
        "[    650]     0   650     3283      800      400      400         0    65536        0         -1000 sshd",
        "[   1701]     0  1701    60000     7000     6000     1000         0   262144        0             0 dashboard-serv",
        "[   3000]  1000  3000   900000   600000   590000    10000         0  5242880        0             0 node (x) y",
        f"[   4242]  1000  4242 32768000   {rss}   524288     2048         0 41943040    50000           {adj} llama-server",
        SUMMARY,
        KILLED.replace("oom_score_adj:200", f"oom_score_adj:{adj}"),
    ]


def kern_log(messages: Iterable[str], *, start: str = "2026-09-12T13:08:", uptime_s: float = 5000.0) -> bytes:
    """Messages as rsyslog writes them to kern.log on a recent Ubuntu, 10 ms apart."""
    rows = [
        f"{start}{10 + n // 100:02d}.{n % 100 * 10_000:06d}+00:00 gx10 kernel: [{uptime_s + n / 100:12.6f}] {message}"
        for n, message in enumerate(messages)
    ]
    return "".join(f"{row}\n" for row in rows).encode()


def findings(text: str | bytes, name: str = "kern.log") -> Findings:
    """What one source holds."""
    return reader.read(name, [text.encode() if isinstance(text, str) else text])


def events(text: str | bytes) -> list[Event]:
    """The events of one source, before anything is put together."""
    return list(findings(text).events)


def answer(*sources: str | bytes, modified_s: float | None = None, **named: str | bytes) -> dict[str, Any]:
    """The whole document about some sources."""
    given: Mapping[str, str | bytes] = {**{f"log{n}": text for n, text in enumerate(sources)}, **named}
    found = [
        reader.read(name, [text.encode() if isinstance(text, str) else text], modified_s)
        for name, text in given.items()
    ]
    return document.document(timeline.build(found, NOW_S), {})
