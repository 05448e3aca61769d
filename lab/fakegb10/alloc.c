// SPDX-License-Identifier: GPL-2.0
/*
 * Taking memory as the driver does: hard reclaim, never the OOM killer, the largest pages first, and a log line
 * for each page size that was refused, whether or not a smaller one then served.
 */
#include <linux/gfp.h>
#include <linux/moduleparam.h>
#include <linux/sched/signal.h>
#include <linux/sizes.h>

#include "internal.h"

/*
 * One request of the driver. What is asked of the device is cut into these; each begins with the largest page size
 * again. 64 MiB are to 1.5 GiB what 5 GiB are to 121.6 GiB.
 */
#define PIECE SZ_64M

/*
 * What is still taken after a fatal signal: 0.6 to 14.6 GiB of 121.6 GiB were seen, 5 to 120 in a thousand; 24 is
 * their geometric mean.
 */
static unsigned int overshoot_permille = 24;

static int set_permille(const char *text, const struct kernel_param *param)
{
	return param_set_uint_minmax(text, param, 0, 1000);
}

static const struct kernel_param_ops permille_ops = { .set = set_permille, .get = param_get_uint };
module_param_cb(overshoot_permille, &permille_ops, &overshoot_permille, 0644);
MODULE_PARM_DESC(overshoot_permille, "thousandths of all memory that a request in flight still takes after SIGKILL");

/* A healthy box was seen to print 4286 such lines in three weeks. */
static unsigned int soft_failure_mib;
module_param(soft_failure_mib, uint, 0644);
MODULE_PARM_DESC(soft_failure_mib, "refuse 2 MiB pages to a request every so many MiB, with the log line; 0: never");

static atomic64_t since_soft_failure;
atomic_long_t fgb_failures;

struct piece {
	u64 end;		/* where the next one begins */
	unsigned int size;	/* the largest page size that was not refused yet */
};

/* Drivers 580.95 and 595.45 print these source lines, the latter with the GPU's number. */
static const char *gpu(void)
{
	return fgb_regime() == FGB_REGIME_A ? "" : "GPU0 ";
}

static void log_refused(void)
{
	atomic_long_inc(&fgb_failures);
	pr_err("NVRM: %snvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from _memdescAllocInternal(pMemDesc) @ mem_desc.c:%d\n",
	       gpu(), fgb_regime() == FGB_REGIME_A ? 1359 : 1336);
}

/* The line that makes it hard: of one such case, 0x176028 bytes were for 748 MiB, 8 a page and 40 once. */
static void log_failed(void)
{
	pr_err("NVRM: %s_iovaspaceCreateMappingDataFromMemDesc: failed to allocate 0x%lx bytes for IOVA mapping metadata\n",
	       gpu(), 40 + 8UL * (PIECE >> PAGE_SHIFT));
}

static bool soft_failure_is_due(u64 bytes)
{
	u64 every = (u64)READ_ONCE(soft_failure_mib) * SZ_1M;

	if (!every || (u64)atomic64_add_return(bytes, &since_soft_failure) < every)
		return false;
	atomic64_set(&since_soft_failure, 0);
	return true;
}

static void begin_piece(struct piece *piece, u64 from, u64 left)
{
	u64 bytes = min_t(u64, left, PIECE);

	piece->end = from + bytes;
	piece->size = 0;
	if (soft_failure_is_due(bytes)) {
		log_refused();
		piece->size = 1;
	}
}

static struct page *take_page(unsigned int order)
{
	gfp_t flags = GFP_KERNEL | __GFP_RETRY_MAYFAIL | __GFP_NOWARN | __GFP_ZERO | __GFP_COMP;

	return fgb_pool_take(order) ?: alloc_pages(flags, order);
}

/*
 * The largest page that is not too large; what this piece was refused once it is not asked for again. Memory of
 * cuMemCreate comes in pieces of 2 MiB and has no use for smaller pages: the request fails, and what reclaim has freed
 * for it stays free in fragments. That is what freezes: with smaller pages the engine gets all there is, and the OOM
 * killer comes to it within half a minute.
 */
static struct page *next_page(struct piece *piece, unsigned int engine, u64 left)
{
	struct page *page = NULL;
	unsigned int size;

	down_write(&fgb_gate);
	for (size = piece->size; size < FGB_SIZES; size++) {
		if (left < PAGE_SIZE << fgb_orders[size])
			continue;
		page = take_page(fgb_orders[size]);
		if (page)
			break;
		log_refused();
		piece->size = size + 1;
		if (engine == FAKEGB10_VMM)
			break;
	}
	up_write(&fgb_gate);
	if (!page)
		log_failed();
	return page;
}

/*
 * Wait until so much is due. A signal ends the wait. After a fatal one the ramp goes on, but no wait is longer than a
 * tenth of a second: what was killed has an end.
 */
static void pace(ktime_t start, const struct fakegb10_alloc *request)
{
	s64 early_us = fgb_early_us(start, request->got, request->bytes_per_s);

	cond_resched();
	if (fatal_signal_pending(current) && early_us)
		schedule_timeout_uninterruptible(usecs_to_jiffies(early_us));
	while (!signal_pending(current) && early_us) {
		schedule_timeout_interruptible(usecs_to_jiffies(early_us));
		early_us = fgb_early_us(start, request->got, request->bytes_per_s);
	}
}

static u64 overshoot(void)
{
	u64 bytes = mul_u64_u32_div((u64)totalram_pages() << PAGE_SHIFT, READ_ONCE(overshoot_permille), 1000);

	return bytes & PAGE_MASK;
}

int fgb_alloc(struct fgb_context *context, struct fakegb10_alloc *request)
{
	struct piece piece = {};
	ktime_t start = ktime_get();
	u64 wanted = request->bytes;
	bool dying = false;
	struct page *page;

	while (request->got < wanted) {
		if (request->got >= piece.end)
			begin_piece(&piece, request->got, wanted - request->got);
		page = next_page(&piece, request->engine, wanted - request->got);
		if (!page)
			return request->got ? 0 : -ENOMEM;
		request->got += PAGE_SIZE << compound_order(page);
		fgb_context_add(context, request->engine, page);
		pace(start, request);
		if (!dying && fatal_signal_pending(current)) {
			dying = true;
			wanted = min(wanted, request->got + overshoot());
		}
		if (!dying && signal_pending(current))
			break;
	}
	return 0;
}
