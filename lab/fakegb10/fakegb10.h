/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/* What programs and the module agree on: the requests of /dev/fakegb10. */
#ifndef FAKEGB10_H
#define FAKEGB10_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* How an engine takes its memory decides how it is booked while it is in use. */
enum fakegb10_engine {
	FAKEGB10_PLAIN,		/* as llama.cpp: in no counter */
	FAKEGB10_VMM,		/* as vLLM: counted reclaimable in regime C */
	FAKEGB10_ENGINES,
};

/*
 * Takes memory for the open file. Like read(2) it may do less than asked: 0 with got > 0, or an error with
 * nothing got: ENOMEM, EINTR (a signal that does not kill).
 */
struct fakegb10_alloc {
	__u64 bytes;		/* in: a multiple of the page size */
	__u64 bytes_per_s;	/* in: 0 is as fast as memory can be had */
	__u64 got;		/* out */
	__u32 engine;		/* in: enum fakegb10_engine */
	__u32 reserved;		/* in: 0 */
};

/* Gives back the newest memory of one engine, in the pieces it was taken in; EBUSY while any of it is mapped. */
struct fakegb10_free {
	__u64 bytes;		/* in: at least so much, or all there is */
	__u64 freed;		/* out */
	__u32 engine;		/* in */
	__u32 reserved;		/* in: 0 */
};

/* Holds the lock that every other use of the device needs, for so long or until killed. */
struct fakegb10_hold_lock {
	__u32 ms;		/* in: at most an hour */
	__u32 reserved;		/* in: 0 */
};

#define FAKEGB10_ALLOC		_IOWR('G', 0x10, struct fakegb10_alloc)
#define FAKEGB10_FREE		_IOWR('G', 0x11, struct fakegb10_free)
#define FAKEGB10_HOLD_LOCK	_IOW('G', 0x12, struct fakegb10_hold_lock)

#endif
