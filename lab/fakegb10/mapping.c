// SPDX-License-Identifier: GPL-2.0
/*
 * Memory mapped into its owner, which then shows it as RssFile. Engines were seen both ways: 32 MB of RSS for one that
 * held 118 GiB, and nearly all of it for another.
 */
#include <linux/fs.h>
#include <linux/sched.h>
#include <linux/version.h>

#include "internal.h"

static void set_flags(struct vm_area_struct *vma, unsigned long flags)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_set(vma, flags);
#else
	vma->vm_flags |= flags;
#endif
}

static void count_mapping(struct fgb_context *context, int change)
{
	mutex_lock(&context->lock);
	context->mappings += change;
	mutex_unlock(&context->lock);
}

/* A mapping was split or moved. */
static void opened(struct vm_area_struct *vma)
{
	count_mapping(vma->vm_private_data, 1);
}

static void closed(struct vm_area_struct *vma)
{
	count_mapping(vma->vm_private_data, -1);
}

static const struct vm_operations_struct operations = { .open = opened, .close = closed };

/* Map one page of any size from this address on, up to the end of the mapping. */
static int map_page(struct vm_area_struct *vma, unsigned long *at, struct page *page)
{
	unsigned long pages = 1UL << compound_order(page);
	unsigned long i;
	int error;

	for (i = 0; i < pages && *at < vma->vm_end; i++, *at += PAGE_SIZE) {
		error = vm_insert_page(vma, *at, page + i);
		if (error)
			return error;
		cond_resched();
	}
	return 0;
}

static int map_all(struct vm_area_struct *vma, struct fgb_context *context)
{
	unsigned long at = vma->vm_start;
	unsigned int engine;
	struct page *page;
	int error;

	for (engine = 0; engine < FAKEGB10_ENGINES; engine++) {
		list_for_each_entry(page, &context->pages[engine], lru) {
			error = map_page(vma, &at, page);
			if (error)
				return error;
		}
	}
	return at < vma->vm_end ? -ENXIO : 0;
}

/* Map what is held, from its beginning. While mapped it cannot be freed; a child does not inherit the mapping. */
int fgb_mmap(struct fgb_context *context, struct vm_area_struct *vma)
{
	int error;

	if (vma->vm_pgoff || !(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	set_flags(vma, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP);
	mutex_lock(&context->lock);
	error = map_all(vma, context);
	if (!error) {
		context->mappings++;
		vma->vm_private_data = context;
		vma->vm_ops = &operations;
	}
	mutex_unlock(&context->lock);
	return error;
}
