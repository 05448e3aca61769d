// SPDX-License-Identifier: GPL-2.0
/*
 * Memory that finished owners left, kept for the next one: a list for each page size, with a shrinker each.
 *
 * The shrinkers count list entries, whatever their size, as the real ones do. The kernel looks at
 * (entries >> priority) * 4 of them and does nothing below 128 unless that is all there is: a pool of 2 MiB pages
 * gives nothing at priorities 12 and 11 below 128 GiB. Nothing of what is freed is reported to reclaim as progress.
 */
#include <linux/highmem.h>
#include <linux/sched.h>
#include <linux/shrinker.h>
#include <linux/slab.h>
#include <linux/version.h>

#include "internal.h"

#define NEW_SHRINKERS (LINUX_VERSION_CODE >= KERNEL_VERSION(6, 7, 0))
#define SEEKS 1

struct fgb_pool {
	struct mutex lock;		/* guards what follows */
	struct list_head entries;
	unsigned long count;
#if NEW_SHRINKERS
	struct shrinker *shrinker;
#else
	struct shrinker shrinker;
	bool registered;
#endif
};

const unsigned int fgb_orders[FGB_SIZES] = { 9, 4, 0 };

/* Initialised here, because parameters are set before the module's own start. */
#define POOL(size) \
	[size] = { .lock = __MUTEX_INITIALIZER(pools[size].lock), .entries = LIST_HEAD_INIT(pools[size].entries) }

static struct fgb_pool pools[FGB_SIZES] = { POOL(0), POOL(1), POOL(2) };

static struct fgb_pool *pool_of(unsigned int order)
{
	unsigned int size = 0;

	while (fgb_orders[size] != order)
		size++;
	return &pools[size];
}

unsigned long fgb_pool_entries(unsigned int size)
{
	return READ_ONCE(pools[size].count);
}

/* The caller holds the pool's lock. */
static void take_out(struct fgb_pool *pool, struct fgb_entry *entry, struct list_head *to)
{
	fgb_book(entry->page, false);
	list_move(&entry->link, to);
	WRITE_ONCE(pool->count, pool->count - 1);
}

/* Give up to so many entries back to the kernel; returns how many. */
static unsigned long give_back(struct fgb_pool *pool, unsigned long wanted)
{
	struct fgb_entry *entry, *next;
	unsigned long freed = 0;
	LIST_HEAD(out);

	mutex_lock(&pool->lock);
	for (; freed < wanted && !list_empty(&pool->entries); freed++)
		take_out(pool, list_first_entry(&pool->entries, struct fgb_entry, link), &out);
	mutex_unlock(&pool->lock);

	list_for_each_entry_safe(entry, next, &out, link) {
		__free_pages(entry->page, compound_order(entry->page));
		kfree(entry);
		cond_resched();
	}
	return freed;
}

static void clear(struct page *page, unsigned int order)
{
	unsigned long i;

	for (i = 0; i < 1UL << order; i++) {
		clear_highpage(page + i);
		cond_resched();
	}
}

/* A zeroed page of this order, or NULL when the pool has none. */
struct page *fgb_pool_take(unsigned int order)
{
	struct fgb_pool *pool = pool_of(order);
	struct fgb_entry *entry;
	struct page *page;
	LIST_HEAD(out);

	mutex_lock(&pool->lock);
	if (!list_empty(&pool->entries))
		take_out(pool, list_first_entry(&pool->entries, struct fgb_entry, link), &out);
	mutex_unlock(&pool->lock);

	entry = list_first_entry_or_null(&out, struct fgb_entry, link);
	if (!entry)
		return NULL;
	page = entry->page;
	kfree(entry);
	clear(page, order);
	return page;
}

/*
 * Keep a page that is on no list any more, or hand it to the kernel: when this size is not pooled, there was no
 * memory for an entry, or somebody else still has a reference to the page.
 */
void fgb_pool_give(struct page *page, struct fgb_entry *entry)
{
	unsigned int order = compound_order(page);
	struct fgb_pool *pool = pool_of(order);
	bool keep;

	mutex_lock(&pool->lock);
	keep = entry && fgb_pools(order) && page_count(page) == 1;
	if (keep) {
		entry->page = page;
		fgb_book(page, fgb_books_pooled(order));
		list_add_tail(&entry->link, &pool->entries);
		WRITE_ONCE(pool->count, pool->count + 1);
	}
	mutex_unlock(&pool->lock);
	if (keep)
		return;
	__free_pages(page, order);
	kfree(entry);
}

void fgb_pools_apply_policy(void)
{
	struct fgb_entry *entry;
	unsigned int size;

	for (size = 0; size < FGB_SIZES; size++) {
		struct fgb_pool *pool = &pools[size];

		if (!fgb_pools(fgb_orders[size])) {
			give_back(pool, ULONG_MAX);
			continue;
		}
		mutex_lock(&pool->lock);
		list_for_each_entry(entry, &pool->entries, link)
			fgb_book(entry->page, fgb_books_pooled(fgb_orders[size]));
		mutex_unlock(&pool->lock);
	}
}

static struct fgb_pool *pool_with(struct shrinker *shrinker)
{
#if NEW_SHRINKERS
	return shrinker->private_data;
#else
	return container_of(shrinker, struct fgb_pool, shrinker);
#endif
}

static unsigned long count(struct shrinker *shrinker, struct shrink_control *control)
{
	return READ_ONCE(pool_with(shrinker)->count) ?: SHRINK_EMPTY;
}

static unsigned long scan(struct shrinker *shrinker, struct shrink_control *control)
{
	return give_back(pool_with(shrinker), control->nr_to_scan) ?: SHRINK_STOP;
}

#if NEW_SHRINKERS
static int add_shrinker(struct fgb_pool *pool, unsigned int order)
{
	pool->shrinker = shrinker_alloc(0, "fakegb10-order-%u", order);
	if (!pool->shrinker)
		return -ENOMEM;
	pool->shrinker->count_objects = count;
	pool->shrinker->scan_objects = scan;
	pool->shrinker->seeks = SEEKS;
	pool->shrinker->private_data = pool;
	shrinker_register(pool->shrinker);
	return 0;
}

static void remove_shrinker(struct fgb_pool *pool)
{
	shrinker_free(pool->shrinker);
	pool->shrinker = NULL;
}
#else
static int add_shrinker(struct fgb_pool *pool, unsigned int order)
{
	int error;

	pool->shrinker.count_objects = count;
	pool->shrinker.scan_objects = scan;
	pool->shrinker.seeks = SEEKS;
	error = register_shrinker(&pool->shrinker, "fakegb10-order-%u", order);
	pool->registered = !error;
	return error;
}

static void remove_shrinker(struct fgb_pool *pool)
{
	if (pool->registered)
		unregister_shrinker(&pool->shrinker);
	pool->registered = false;
}
#endif

int fgb_pools_init(void)
{
	unsigned int size;
	int error;

	for (size = 0; size < FGB_SIZES; size++) {
		error = add_shrinker(&pools[size], fgb_orders[size]);
		if (error) {
			fgb_pools_exit();
			return error;
		}
	}
	return 0;
}

void fgb_pools_exit(void)
{
	unsigned int size;

	for (size = 0; size < FGB_SIZES; size++) {
		remove_shrinker(&pools[size]);
		give_back(&pools[size], ULONG_MAX);
	}
}
