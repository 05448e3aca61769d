// SPDX-License-Identifier: GPL-2.0
/* What the driver shows below /proc/driver/nvidia, and what is held, below /proc/driver/fakegb10. */
#include <linux/moduleparam.h>
#include <linux/pid.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/utsname.h>

#include "internal.h"

/* Drivers before 580.65.06 do not tell. */
static bool process_memory = true;
module_param(process_memory, bool, 0644);
MODULE_PARM_DESC(process_memory, "tell how much memory each process holds");

/* Published drivers of each way of accounting. */
static const char * const versions[] = { "580.173.02", "595.45.04", "595.99.02" };

static struct proc_dir_entry *look_alike;
static struct proc_dir_entry *own;

static unsigned long kib(unsigned long pages)
{
	return pages << (PAGE_SHIFT - 10);
}

static int show_version(struct seq_file *file, void *unused)
{
	seq_printf(file, "NVRM version: NVIDIA UNIX Open Kernel Module for %s  %s  Release Build  (fakegb10, no GPU)\n",
		   utsname()->machine, versions[fgb_regime()]);
	seq_puts(file, "GCC version:  " CONFIG_CC_VERSION_TEXT "\n");
	return 0;
}

/* A driver of regime A is older than the option, and does not have its line. */
static int show_params(struct seq_file *file, void *unused)
{
	seq_puts(file, "InitializeSystemMemoryAllocations: 1\n");
	if (fgb_regime() != FGB_REGIME_A)
		seq_printf(file, "EnableSystemMemoryPools: %u\n", fgb_pool_mask());
	return 0;
}

static int show_state(struct seq_file *file, void *unused)
{
	unsigned int size;

	seq_printf(file, "regime: %c\n", "ABC"[fgb_regime()]);
	seq_printf(file, "plain_kib: %lu\n", kib(atomic_long_read(&fgb_in_use[FAKEGB10_PLAIN])));
	seq_printf(file, "vmm_kib: %lu\n", kib(atomic_long_read(&fgb_in_use[FAKEGB10_VMM])));
	for (size = 0; size < FGB_SIZES; size++)
		seq_printf(file, "pool_%lu_kib_entries: %lu\n", kib(1UL << fgb_orders[size]), fgb_pool_entries(size));
	seq_printf(file, "booked_kib: %lu\n", kib(atomic_long_read(&fgb_booked)));
	seq_printf(file, "refused: %ld\n", atomic_long_read(&fgb_failures));
	return 0;
}

static unsigned long held(struct fgb_context *context)
{
	unsigned long pages = 0;
	unsigned int engine;

	mutex_lock(&context->lock);
	for (engine = 0; engine < FAKEGB10_ENGINES; engine++)
		pages += context->held[engine];
	mutex_unlock(&context->lock);
	return pages;
}

/*
 * Process id of each owner that the reader's PID namespace can name, and its KiB. Waits at the gate, as nvidia-smi was
 * seen to wait for 491 to 737 s.
 */
static int show_processes(struct seq_file *file, void *unused)
{
	struct fgb_context *context;
	pid_t pid;

	down_read(&fgb_gate);
	mutex_lock(&fgb_contexts_lock);
	list_for_each_entry(context, &fgb_contexts, link) {
		pid = pid_vnr(context->owner);
		if (pid && READ_ONCE(process_memory))
			seq_printf(file, "%d %lu\n", pid, kib(held(context)));
		else if (pid)
			seq_printf(file, "%d\n", pid);
	}
	mutex_unlock(&fgb_contexts_lock);
	up_read(&fgb_gate);
	return 0;
}

void fgb_proc_exit(void)
{
	proc_remove(look_alike);
	proc_remove(own);
}

int fgb_proc_init(void)
{
	look_alike = proc_mkdir("driver/nvidia", NULL);
	own = proc_mkdir("driver/fakegb10", NULL);
	if (look_alike && own &&
	    proc_create_single("version", 0444, look_alike, show_version) &&
	    proc_create_single("params", 0444, look_alike, show_params) &&
	    proc_create_single("state", 0444, own, show_state) &&
	    proc_create_single("processes", 0444, own, show_processes))
		return 0;
	fgb_proc_exit();
	pr_err("fakegb10: cannot make its files below /proc/driver: is a real driver loaded?\n");
	return -EEXIST;
}
