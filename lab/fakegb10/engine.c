// SPDX-License-Identifier: GPL-2.0
/*
 * A model server's two processes, no larger beside everybody else than they are on a box. There the one that holds
 * the memory had 32 MB of RSS of 121.6 GiB, and the kernel shot the desktop and never came to it; a Python process in
 * a machine of 1.5 GiB would be its largest, and the first to go.
 *
 * Its command line is the model server's. What it does is in the environment, in LAB_ENGINE_PLAN:
 *
 *	COMM WORKER ENGINE ENDS_AFTER_MS ASKS_AGAIN_MS WEIGHTS
 *	BYTES BYTES_PER_S READ_BYTES HOLD_MS GIVES_BACK		(a line for each phase)
 *
 * ENGINE is a number of enum fakegb10_engine. ENDS_AFTER_MS counts from SIGTERM; below 0 it is ignored. ASKS_AGAIN_MS
 * is how long it waits when the driver has refused.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fakegb10.h"

#define PAGE		4096ULL
#define SLICE		(16ULL << 20)	/* reading and growing take turns, as with a checkpoint's shards */

struct plan {
	char comm[16], worker[32], weights[256];
	unsigned int engine;
	long ends_after_ms, asks_again_ms;
	const char *phases;
};

struct phase {
	unsigned long long bytes, bytes_per_s, read_bytes, hold_ms;
	int gives_back;
};

static char buffer[64 << 10];
static pid_t child;
static struct itimerval until_the_end;

static void die(const char *what)
{
	perror(what);
	_exit(1);
}

static void end(int number)
{
	(void)number;
	_exit(0);
}

static void end_later(int number)
{
	(void)number;
	setitimer(ITIMER_REAL, &until_the_end, NULL);
}

static void pass_on(int number)
{
	kill(child, number);
}

static void on(int number, void (*handler)(int))
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };

	sigaction(number, &action, NULL);
}

static void read_weights(int file, unsigned long long bytes)
{
	while (file >= 0 && bytes) {
		ssize_t got = read(file, buffer, bytes < sizeof(buffer) ? bytes : sizeof(buffer));

		if (got <= 0 && errno != EINTR)
			return;
		bytes -= got > 0 ? got : 0;
	}
}

/* Takes all of it, however long the driver refuses. */
static void grow(int device, const struct plan *plan, unsigned long long bytes, unsigned long long bytes_per_s)
{
	bytes = (bytes + PAGE - 1) / PAGE * PAGE;
	while (bytes) {
		struct fakegb10_alloc request = { .bytes = bytes, .bytes_per_s = bytes_per_s,
						   .engine = plan->engine };

		if (!ioctl(device, FAKEGB10_ALLOC, &request))
			bytes -= request.got;
		else if (errno == ENOMEM)
			usleep(plan->asks_again_ms * 1000);
		else if (errno != EINTR)
			die("/dev/fakegb10");
	}
}

static void run_phase(const struct phase *phase, int device, const struct plan *plan, int weights)
{
	unsigned long long slices = (phase->read_bytes + SLICE - 1) / SLICE, number;
	struct timespec hold = { .tv_sec = phase->hold_ms / 1000, .tv_nsec = phase->hold_ms % 1000 * 1000000 };

	if (!slices)
		slices = 1;
	if (phase->read_bytes && weights >= 0)
		lseek(weights, 0, SEEK_SET);
	for (number = 0; number < slices; number++) {
		read_weights(weights, phase->read_bytes / slices);
		grow(device, plan, phase->bytes * (number + 1) / slices - phase->bytes * number / slices,
		     phase->bytes_per_s);
	}
	while (nanosleep(&hold, &hold) && errno == EINTR)
		;
	if (phase->gives_back) {
		struct fakegb10_free request = { .bytes = phase->bytes / PAGE * PAGE, .engine = plan->engine };

		if (request.bytes && ioctl(device, FAKEGB10_FREE, &request))
			die("/dev/fakegb10");
	}
}

static void hold_memory(const struct plan *plan)
{
	int device = open("/dev/fakegb10", O_RDWR | O_CLOEXEC), weights = open(plan->weights, O_RDONLY | O_CLOEXEC);
	const char *line;

	if (device < 0)
		die("/dev/fakegb10");
	/* an interval of 0 would stop the clock */
	until_the_end.it_value.tv_sec = plan->ends_after_ms / 1000;
	until_the_end.it_value.tv_usec = plan->ends_after_ms % 1000 * 1000 + 1;
	on(SIGALRM, end);
	on(SIGTERM, plan->ends_after_ms < 0 ? SIG_IGN : end_later);
	for (line = plan->phases; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
		struct phase phase;

		if (sscanf(line, "%llu %llu %llu %llu %d", &phase.bytes, &phase.bytes_per_s, &phase.read_bytes,
			   &phase.hold_ms, &phase.gives_back) != 5) {
			fprintf(stderr, "this is no phase: %s\n", line);
			_exit(2);
		}
		run_phase(&phase, device, plan, weights);
	}
	for (;;)
		pause();
}

/* Puts the title over the command line, as setproctitle does. */
static void take_title(char **argv, const char *title, const char *comm)
{
	char *last = argv[0];
	size_t room;
	int i;

	for (i = 0; argv[i]; i++)
		last = argv[i] + strlen(argv[i]);
	room = last - argv[0];
	memset(argv[0], 0, room);
	memcpy(argv[0], title, strlen(title) < room ? strlen(title) : room);
	prctl(PR_SET_NAME, comm);
}

static int wait_for_worker(const struct plan *plan)
{
	int status;

	on(SIGTERM, plan->ends_after_ms < 0 ? SIG_IGN : pass_on);
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			die("waitpid");
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int argc, char **argv)
{
	const char *text = getenv("LAB_ENGINE_PLAN");
	struct plan plan;
	int begin = 0;

	/* a process's name has 15 characters at most; "-" is a server without a worker */
	if (argc < 2 || !text ||
	    sscanf(text, "%15s %31s %u %ld %ld %255s%n", plan.comm, plan.worker, &plan.engine, &plan.ends_after_ms,
		   &plan.asks_again_ms, plan.weights, &begin) != 6 || !begin) {
		fprintf(stderr, "engine: LAB_ENGINE_PLAN holds no plan\n");
		return 2;
	}
	plan.phases = text + begin + (text[begin] == '\n');
	prctl(PR_SET_NAME, plan.comm);
	if (!strcmp(plan.worker, "-"))
		hold_memory(&plan);
	child = fork();
	if (child < 0)
		die("fork");
	if (child)
		return wait_for_worker(&plan);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	take_title(argv, plan.worker, plan.worker);
	hold_memory(&plan);
}
