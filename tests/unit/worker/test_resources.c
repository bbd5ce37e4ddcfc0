#define _GNU_SOURCE
#include "core/worker/resources.h"
#include "tests/check_main.h"

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char top[64], proc[96], cgroup[96];
static struct resource_roots roots = {proc, cgroup};

/* Writes top/path, making its folders. */
static void put(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof(full), "%s/%s", top, path);
    for (char *p = full + strlen(top) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        ck_assert(mkdir(full, 0755) == 0 || errno == EEXIST);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

static void setup(void)
{
    snprintf(top, sizeof(top), "/tmp/test_resources.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(top));
    snprintf(proc, sizeof(proc), "%s/proc", top);
    snprintf(cgroup, sizeof(cgroup), "%s/cg", top);
}

static void teardown(void)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -r %s", top);
    ck_assert_int_eq(system(command), 0);
}

START_TEST(nothing_known)
{
    ck_assert(resources_memory(&roots) == RESOURCE_UNLIMITED);
    ck_assert(resources_cpu_quota(&roots) == RESOURCE_UNLIMITED);
    ck_assert_uint_ge(resources_cpus(&roots), 1);
}
END_TEST

START_TEST(meminfo)
{
    put("proc/meminfo", "MemTotal:       24000000 kB\nMemFree: 5 kB\nMemAvailable:   12345 kB\n");
    ck_assert_uint_eq(resources_memory(&roots), 12345u * 1024);
}
END_TEST

START_TEST(version_2)
{
    put("proc/meminfo", "MemAvailable:   9000000 kB\n");
    put("proc/self/cgroup", "0::/a/b\n");
    put("cg/a/b/memory.max", "max\n");
    put("cg/a/b/cpu.max", "max 100000\n");
    ck_assert_uint_eq(resources_memory(&roots), 9000000ull * 1024);
    ck_assert(resources_cpu_quota(&roots) == RESOURCE_UNLIMITED);
    put("cg/a/memory.max", "1000000\n");
    put("cg/a/memory.current", "700000\n");
    put("cg/a/memory.stat", "anon 5\ninactive_file 100000\nactive_file 50000\n");
    put("cg/a/cpu.max", "150000 100000\n");
    ck_assert_uint_eq(resources_memory(&roots), 450000);
    ck_assert_uint_eq(resources_cpu_quota(&roots), 2);
    put("cg/a/b/cpu.max", "50000 100000\n");
    ck_assert_uint_eq(resources_cpu_quota(&roots), 1);
    ck_assert_uint_eq(resources_cpus(&roots), 1);
    put("cg/a/memory.current", "2000000\n");
    ck_assert_uint_eq(resources_memory(&roots), 0);
}
END_TEST

START_TEST(version_2_namespace)
{
    put("proc/self/cgroup", "0::/../other\n");
    put("cg/memory.max", "777\n");
    ck_assert_uint_eq(resources_memory(&roots), 777);
}
END_TEST

START_TEST(version_1)
{
    put("proc/self/cgroup", "4:memory:/box\n2:cpu,cpuacct:/box\n0::/\n");
    put("cg/memory/box/memory.limit_in_bytes", "9223372036854771712\n");
    ck_assert(resources_memory(&roots) == RESOURCE_UNLIMITED);
    put("cg/memory/memory.limit_in_bytes", "4000\n");
    put("cg/memory/memory.usage_in_bytes", "1500\n");
    ck_assert_uint_eq(resources_memory(&roots), 2500);
    put("cg/cpu/box/cpu.cfs_quota_us", "-1\n");
    ck_assert(resources_cpu_quota(&roots) == RESOURCE_UNLIMITED);
    put("cg/cpu/box/cpu.cfs_quota_us", "250000\n");
    put("cg/cpu/box/cpu.cfs_period_us", "100000\n");
    ck_assert_uint_eq(resources_cpu_quota(&roots), 3);
}
END_TEST

START_TEST(garbage)
{
    put("proc/meminfo", "MemAvailable: lots\n");
    put("proc/self/cgroup", "0\n:::\n1:memory\nx:y:z\n0::/g\n");
    put("cg/g/memory.max", "many\n");
    put("cg/g/cpu.max", "\n");
    ck_assert(resources_memory(&roots) == RESOURCE_UNLIMITED);
    ck_assert(resources_cpu_quota(&roots) == RESOURCE_UNLIMITED);
    put("cg/g/cpu.max", "0 0\n");
    ck_assert(resources_cpu_quota(&roots) == RESOURCE_UNLIMITED);
}
END_TEST

START_TEST(threads)
{
    ck_assert_uint_eq(resources_compute_threads(1), 1);
    ck_assert_uint_eq(resources_compute_threads(2), 2);
    ck_assert_uint_eq(resources_compute_threads(3), 2);
    ck_assert_uint_eq(resources_compute_threads(64), 63);
}
END_TEST

START_TEST(plan)
{
    struct error err = {0};
    struct memory_plan p = {.free = 1000, .weights = 200, .kv_useful = 10000};
    ck_assert_int_eq(memory_plan_make(&p, &err), STATUS_OK);
    ck_assert_uint_eq(p.kv, 200);
    p.kv_useful = 150;
    ck_assert_int_eq(memory_plan_make(&p, &err), STATUS_OK);
    ck_assert_uint_eq(p.kv, 150);
    p.kv_wanted = 800;
    ck_assert_int_eq(memory_plan_make(&p, &err), STATUS_OK);
    ck_assert_uint_eq(p.kv, 800);
    p.kv_wanted = 801;
    ck_assert_int_eq(memory_plan_make(&p, &err), STATUS_NO_MEMORY);
    ck_assert_ptr_nonnull(strstr(err.text, "200 B"));
    ck_assert_ptr_nonnull(strstr(err.text, "801 B"));
    ck_assert_ptr_nonnull(strstr(err.text, "1000 B"));
    p.weights = 1001;
    ck_assert_int_eq(memory_plan_make(&p, &err), STATUS_NO_MEMORY);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("worker/resources");
    TCase *tc = tcase_create("resources");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, nothing_known);
    tcase_add_test(tc, meminfo);
    tcase_add_test(tc, version_2);
    tcase_add_test(tc, version_2_namespace);
    tcase_add_test(tc, version_1);
    tcase_add_test(tc, garbage);
    tcase_add_test(tc, threads);
    tcase_add_test(tc, plan);
    suite_add_tcase(suite, tc);
    return check_run(suite);
}
