// SPDX-License-Identifier: GPL-2.0
/* A stand-in for NVIDIA's driver on a box whose GPU uses the system's memory: takes memory, and does nothing else. */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/uaccess.h>

#include "internal.h"

#define MOST_BYTES (1ULL << 50)
#define HOUR_MS 3600000U

static int open(struct inode *inode, struct file *file)
{
	struct fgb_context *context = fgb_context_open();

	if (!context)
		return -ENOMEM;
	file->private_data = context;
	return 0;
}

static int release(struct inode *inode, struct file *file)
{
	fgb_context_close(file->private_data);
	return 0;
}

static long ioctl_alloc(struct fgb_context *context, void __user *at)
{
	struct fakegb10_alloc request;
	int error;

	if (copy_from_user(&request, at, sizeof(request)))
		return -EFAULT;
	if (!request.bytes || request.bytes > MOST_BYTES || !PAGE_ALIGNED(request.bytes) ||
	    request.engine >= FAKEGB10_ENGINES || request.reserved)
		return -EINVAL;
	request.got = 0;
	error = fgb_alloc(context, &request);
	/* also when it failed: nobody takes a stale figure for memory that was got */
	if (copy_to_user(at, &request, sizeof(request)))
		return -EFAULT;
	return error;
}

static long ioctl_free(struct fgb_context *context, void __user *at)
{
	struct fakegb10_free request;
	int error;

	if (copy_from_user(&request, at, sizeof(request)))
		return -EFAULT;
	if (request.engine >= FAKEGB10_ENGINES || request.reserved)
		return -EINVAL;
	request.freed = 0;
	error = fgb_context_free(context, &request);
	if (copy_to_user(at, &request, sizeof(request)))
		return -EFAULT;
	return error;
}

/* The holder can be killed; those who wait for it cannot, and are reported as hung with it as the likely owner. */
static long ioctl_hold_lock(void __user *at)
{
	struct fakegb10_hold_lock request;
	int error;

	if (copy_from_user(&request, at, sizeof(request)))
		return -EFAULT;
	if (request.ms > HOUR_MS || request.reserved)
		return -EINVAL;
	error = down_write_killable(&fgb_gate);
	if (error)
		return error;
	schedule_timeout_killable(msecs_to_jiffies(request.ms));
	up_write(&fgb_gate);
	return 0;
}

static long ioctl(struct file *file, unsigned int request, unsigned long argument)
{
	void __user *at = (void __user *)argument;

	switch (request) {
	case FAKEGB10_ALLOC:
		return ioctl_alloc(file->private_data, at);
	case FAKEGB10_FREE:
		return ioctl_free(file->private_data, at);
	case FAKEGB10_HOLD_LOCK:
		return ioctl_hold_lock(at);
	default:
		return -ENOTTY;
	}
}

static int mmap(struct file *file, struct vm_area_struct *vma)
{
	return fgb_mmap(file->private_data, vma);
}

/* With its owner the module cannot be unloaded while a file is open, or still being torn down. */
static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = open,
	.release = release,
	.unlocked_ioctl = ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = mmap,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "fakegb10",
	.fops = &operations,
	.mode = 0666,
};

static int __init start(void)
{
	int error = fgb_pools_init();

	if (error)
		return error;
	error = fgb_proc_init();
	if (error)
		goto no_proc;
	error = misc_register(&device);
	if (error)
		goto no_device;
	pr_info("fakegb10: takes memory as NVIDIA's driver does; there is no GPU\n");
	return 0;

no_device:
	fgb_proc_exit();
no_proc:
	fgb_pools_exit();
	return error;
}

static void __exit end(void)
{
	unsigned int engine;

	misc_deregister(&device);
	fgb_proc_exit();
	fgb_pools_exit();
	for (engine = 0; engine < FAKEGB10_ENGINES; engine++)
		WARN_ON(atomic_long_read(&fgb_in_use[engine]));
	WARN_ON(atomic_long_read(&fgb_booked));
}

module_init(start);
module_exit(end);
MODULE_DESCRIPTION("takes memory as NVIDIA's driver does on a GB10, and does nothing else");
MODULE_AUTHOR("Plimsoll contributors");
MODULE_LICENSE("GPL");
