// SPDX-License-Identifier: GPL-2.0
/* The three ways in which drivers account for memory, switchable while memory is held. */
#include <linux/kstrtox.h>
#include <linux/mm.h>
#include <linux/moduleparam.h>
#include <linux/string.h>
#include <linux/sysfs.h>

#include "internal.h"

/* A bit of the driver's mask is a page size divided by 4 KiB: 1 << order. All three, as the driver's default. */
#define ALL_POOLS (BIT(9) | BIT(4) | BIT(0))

static const char regime_names[] = "ABC";

static unsigned int regime = FGB_REGIME_C;
static unsigned int pool_mask = ALL_POOLS;

atomic_long_t fgb_booked;

enum fgb_regime fgb_regime(void)
{
	return READ_ONCE(regime);
}

unsigned int fgb_pool_mask(void)
{
	return READ_ONCE(pool_mask);
}

bool fgb_pools(unsigned int order)
{
	return fgb_regime() != FGB_REGIME_A && fgb_pool_mask() & BIT(order);
}

/* Nobody knows what regime C does without pools; here only memory that a pool can take is counted. */
bool fgb_books_in_use(unsigned int engine, unsigned int order)
{
	return engine == FAKEGB10_VMM && fgb_books_pooled(order);
}

bool fgb_books_pooled(unsigned int order)
{
	return fgb_regime() == FGB_REGIME_C && fgb_pools(order);
}

/*
 * Count a page reclaimable, or no longer. The page itself remembers which, so that it leaves the counter exactly
 * once whatever the regime was changed to. The caller holds the lock of the list that the page is on.
 */
void fgb_book(struct page *page, bool booked)
{
	long pages = 1L << compound_order(page);

	if (booked == !!page_private(page))
		return;
	set_page_private(page, booked);
	if (!booked)
		pages = -pages;
	mod_node_page_state(page_pgdat(page), NR_KERNEL_MISC_RECLAIMABLE, pages);
	atomic_long_add(pages, &fgb_booked);
}

/* The new policy is visible before any list is locked: what joins a list afterwards is booked by it already. */
static void apply(void)
{
	fgb_contexts_apply_policy();
	fgb_pools_apply_policy();
}

static int set_regime(const char *text, const struct kernel_param *param)
{
	const char *found = *text ? strchr(regime_names, *text) : NULL;

	if (!found || !sysfs_streq(text + 1, ""))
		return -EINVAL;
	WRITE_ONCE(regime, found - regime_names);
	apply();
	return 0;
}

static int get_regime(char *buffer, const struct kernel_param *param)
{
	return sysfs_emit(buffer, "%c\n", regime_names[fgb_regime()]);
}

static const struct kernel_param_ops regime_ops = { .set = set_regime, .get = get_regime };
module_param_cb(regime, &regime_ops, NULL, 0644);
MODULE_PARM_DESC(regime,
		 "A: no pool. B: freed memory is pooled, in no counter. C: pooled and VMM memory is reclaimable");

static int set_pool_mask(const char *text, const struct kernel_param *param)
{
	unsigned int mask;
	int error = kstrtouint(text, 0, &mask);

	if (error)
		return error;
	if (mask & ~ALL_POOLS)
		return -EINVAL;
	WRITE_ONCE(pool_mask, mask);
	apply();
	return 0;
}

static int get_pool_mask(char *buffer, const struct kernel_param *param)
{
	return sysfs_emit(buffer, "%u\n", fgb_pool_mask());
}

static const struct kernel_param_ops pool_mask_ops = { .set = set_pool_mask, .get = get_pool_mask };
module_param_cb(EnableSystemMemoryPools, &pool_mask_ops, NULL, 0644);
MODULE_PARM_DESC(EnableSystemMemoryPools, "which page sizes are pooled: 1 is 4 KiB, 16 is 64 KiB, 512 is 2 MiB");
