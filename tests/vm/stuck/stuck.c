// SPDX-License-Identifier: GPL-2.0
/* What a machine does not do by itself: a processor that does not come out of the kernel, and a panic. */
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/preempt.h>

static unsigned int spin_s;
module_param(spin_s, uint, 0444);
static bool panics;
module_param(panics, bool, 0444);

/* Without preemption, and with interrupts: the watchdog's timer goes on and sees that its task does not run. */
static int spin(void *unused)
{
	ktime_t until = ktime_add_ms(ktime_get(), spin_s * 1000);

	preempt_disable();
	while (ktime_before(ktime_get(), until))
		udelay(100);
	preempt_enable();
	return 0;
}

static int __init stuck_init(void)
{
	struct task_struct *task;

	if (panics)
		panic("stuck: nothing goes on");
	task = kthread_run(spin, NULL, "stuck");
	return PTR_ERR_OR_ZERO(task);
}

/* Only once it does not spin any more: the thread runs code of this module. */
static void __exit stuck_exit(void)
{
}

module_init(stuck_init);
module_exit(stuck_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("a processor that does not come out of the kernel, or a panic");
