// SPDX-License-Identifier: GPL-2.0
/* An open file and its memory: on no LRU, charged to no cgroup, gone when the file is closed. */
#include <linux/delay.h>
#include <linux/math64.h>
#include <linux/moduleparam.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "internal.h"

/* Shorter waits than this are left to add up. */
#define LEAST_WAIT_US (10 * USEC_PER_MSEC)
#define LONGEST_WAIT_US (100 * USEC_PER_MSEC)

/* 20 % is 121.6 GiB in 5 s: GB10 boxes with driver 580 were seen to get all of it back in 2 to 5 s. */
static unsigned int teardown_percent_per_s = 20;

static int set_percent(const char *text, const struct kernel_param *param)
{
	return param_set_uint_minmax(text, param, 0, 100000);
}

static const struct kernel_param_ops percent_ops = { .set = set_percent, .get = param_get_uint };
module_param_cb(teardown_percent_per_s, &percent_ops, &teardown_percent_per_s, 0644);
MODULE_PARM_DESC(teardown_percent_per_s, "percent of all memory that a closed file gives back in a second; 0: at once");

DECLARE_RWSEM(fgb_gate);
DEFINE_MUTEX(fgb_contexts_lock);
LIST_HEAD(fgb_contexts);
atomic_long_t fgb_in_use[FAKEGB10_ENGINES];

struct fgb_context *fgb_context_open(void)
{
	struct fgb_context *context = kzalloc(sizeof(*context), GFP_KERNEL);
	unsigned int engine;

	if (!context)
		return NULL;
	mutex_init(&context->lock);
	for (engine = 0; engine < FAKEGB10_ENGINES; engine++)
		INIT_LIST_HEAD(&context->pages[engine]);
	context->owner = get_pid(task_tgid(current));
	down_read(&fgb_gate);
	mutex_lock(&fgb_contexts_lock);
	list_add_tail(&context->link, &fgb_contexts);
	mutex_unlock(&fgb_contexts_lock);
	up_read(&fgb_gate);
	return context;
}

static void count_held(struct fgb_context *context, unsigned int engine, long pages)
{
	context->held[engine] += pages;
	atomic_long_add(pages, &fgb_in_use[engine]);
}

void fgb_context_add(struct fgb_context *context, unsigned int engine, struct page *page)
{
	unsigned int order = compound_order(page);

	mutex_lock(&context->lock);
	fgb_book(page, fgb_books_in_use(engine, order));
	list_add_tail(&page->lru, &context->pages[engine]);
	count_held(context, engine, 1L << order);
	mutex_unlock(&context->lock);
}

/* The newest page; NULL when there is none, an error while any is mapped. */
static struct page *take_newest(struct fgb_context *context, unsigned int engine)
{
	struct page *page = NULL;

	mutex_lock(&context->lock);
	if (context->mappings) {
		page = ERR_PTR(-EBUSY);
	} else if (!list_empty(&context->pages[engine])) {
		page = list_last_entry(&context->pages[engine], struct page, lru);
		list_del(&page->lru);
		fgb_book(page, false);
		count_held(context, engine, -(1L << compound_order(page)));
	}
	mutex_unlock(&context->lock);
	return page;
}

/*
 * Give one page back; returns its bytes, 0 when there is none, or an error. It needs memory itself, as the driver
 * does: one small allocation a page, before the gate is passed, so that nobody waits at the gate for memory.
 */
static long free_newest(struct fgb_context *context, unsigned int engine)
{
	struct fgb_entry *entry = kmalloc(sizeof(*entry), GFP_KERNEL | __GFP_NOWARN);
	struct page *page;
	long bytes = 0;

	down_read(&fgb_gate);
	page = take_newest(context, engine);
	if (IS_ERR_OR_NULL(page)) {
		kfree(entry);
		bytes = PTR_ERR_OR_ZERO(page);
	} else {
		bytes = (long)PAGE_SIZE << compound_order(page);
		fgb_pool_give(page, entry);
	}
	up_read(&fgb_gate);
	cond_resched();
	return bytes;
}

int fgb_context_free(struct fgb_context *context, struct fakegb10_free *request)
{
	long bytes = 1;

	while (request->freed < request->bytes && bytes > 0) {
		bytes = free_newest(context, request->engine);
		if (bytes > 0)
			request->freed += bytes;
	}
	return bytes < 0 && !request->freed ? (int)bytes : 0;
}

/* By how much so many bytes since the start are too early; 0 for a difference that is not worth a wait. */
s64 fgb_early_us(ktime_t start, u64 bytes, u64 bytes_per_s)
{
	u64 due_us;
	s64 early_us;

	if (!bytes_per_s)
		return 0;
	/* in KiB, or the product would not fit */
	due_us = div64_u64((bytes >> 10) * USEC_PER_SEC, max(bytes_per_s >> 10, 1ULL));
	early_us = due_us - ktime_us_delta(ktime_get(), start);
	if (early_us < LEAST_WAIT_US)
		return 0;
	return min_t(s64, early_us, LONGEST_WAIT_US);
}

static u64 teardown_rate(void)
{
	return mul_u64_u32_div((u64)totalram_pages() << PAGE_SHIFT, READ_ONCE(teardown_percent_per_s), 100);
}

/* Runs in whoever closes the file last; of a killed process that is itself, which stays until all is given back. */
void fgb_context_close(struct fgb_context *context)
{
	u64 rate = teardown_rate();
	ktime_t start = ktime_get();
	unsigned int engine;
	u64 freed = 0;
	s64 early_us;
	long bytes;

	for (engine = 0; engine < FAKEGB10_ENGINES; engine++) {
		while ((bytes = free_newest(context, engine)) > 0) {
			freed += bytes;
			while ((early_us = fgb_early_us(start, freed, rate)))
				msleep(early_us / USEC_PER_MSEC);
		}
	}
	mutex_lock(&fgb_contexts_lock);
	list_del(&context->link);
	mutex_unlock(&fgb_contexts_lock);
	put_pid(context->owner);
	mutex_destroy(&context->lock);
	kfree(context);
}

void fgb_contexts_apply_policy(void)
{
	struct fgb_context *context;
	unsigned int engine;
	struct page *page;

	mutex_lock(&fgb_contexts_lock);
	list_for_each_entry(context, &fgb_contexts, link) {
		mutex_lock(&context->lock);
		for (engine = 0; engine < FAKEGB10_ENGINES; engine++)
			list_for_each_entry(page, &context->pages[engine], lru)
				fgb_book(page, fgb_books_in_use(engine, compound_order(page)));
		mutex_unlock(&context->lock);
	}
	mutex_unlock(&fgb_contexts_lock);
}
