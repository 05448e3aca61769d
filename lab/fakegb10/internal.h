/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the files of the module share.
 *
 * Order of locks: fgb_gate > fgb_contexts_lock > context lock; mmap_lock > context lock; a pool's lock is the
 * innermost. Memory is allocated under the gate and under a context's lock, and never under a pool's, which the
 * shrinker takes inside of memory reclaim.
 */
#ifndef FAKEGB10_INTERNAL_H
#define FAKEGB10_INTERNAL_H

#include <linux/atomic.h>
#include <linux/ktime.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/pid.h>
#include <linux/rwsem.h>

#include "fakegb10.h"

#if PAGE_SHIFT != 12
#error "the driver's three page sizes are 2 MiB, 64 KiB and 4 KiB, the last being the kernel's own"
#endif

/* Page sizes as orders, largest first, and the number of them. */
#define FGB_SIZES 3
extern const unsigned int fgb_orders[FGB_SIZES];

/* One open file. */
struct fgb_context {
	struct list_head link;		/* in fgb_contexts */
	struct pid *owner;
	struct mutex lock;		/* guards what follows */
	struct list_head pages[FAKEGB10_ENGINES];	/* by page->lru */
	unsigned long held[FAKEGB10_ENGINES];	/* in pages of 4 KiB */
	unsigned int mappings;
};

/* What a page in a pool is remembered by; allocated while memory is given back. */
struct fgb_entry {
	struct list_head link;
	struct page *page;
};

/* policy.c: how memory is accounted */
enum fgb_regime { FGB_REGIME_A, FGB_REGIME_B, FGB_REGIME_C };
enum fgb_regime fgb_regime(void);
unsigned int fgb_pool_mask(void);
bool fgb_pools(unsigned int order);
bool fgb_books_in_use(unsigned int engine, unsigned int order);
bool fgb_books_pooled(unsigned int order);
void fgb_book(struct page *page, bool booked);
extern atomic_long_t fgb_booked;

/* pool.c: what finished owners left */
int fgb_pools_init(void);
void fgb_pools_exit(void);
void fgb_pools_apply_policy(void);
unsigned long fgb_pool_entries(unsigned int size);
struct page *fgb_pool_take(unsigned int order);
void fgb_pool_give(struct page *page, struct fgb_entry *entry);

/* context.c: what an open file holds */
extern struct rw_semaphore fgb_gate;
extern struct mutex fgb_contexts_lock;
extern struct list_head fgb_contexts;
extern atomic_long_t fgb_in_use[FAKEGB10_ENGINES];
struct fgb_context *fgb_context_open(void);
void fgb_context_close(struct fgb_context *context);
void fgb_context_add(struct fgb_context *context, unsigned int engine, struct page *page);
int fgb_context_free(struct fgb_context *context, struct fakegb10_free *request);
void fgb_contexts_apply_policy(void);
s64 fgb_early_us(ktime_t start, u64 bytes, u64 bytes_per_s);

/* alloc.c: taking memory */
extern atomic_long_t fgb_failures;
int fgb_alloc(struct fgb_context *context, struct fakegb10_alloc *request);

/* mapping.c */
int fgb_mmap(struct fgb_context *context, struct vm_area_struct *vma);

/* proc.c */
int fgb_proc_init(void);
void fgb_proc_exit(void);

#endif
