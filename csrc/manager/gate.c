/* gate.c: see gate.h. nm_gate_program has the program: one step a line, jumps by name. */
#include "manager/gate.h"

#include <errno.h>
#include <linux/bpf.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { MOST_ATTACHED = 64 };

/* -- the program -- */

#define STEP(operation, to, from, skip, value) \
    ((struct bpf_insn){.code = (operation), \
                       .dst_reg = BPF_REG_##to, \
                       .src_reg = BPF_REG_##from, \
                       .off = (skip), \
                       .imm = (value)})
#define READ(to, from, field) \
    STEP(BPF_LDX | BPF_W | BPF_MEM, to, from, offsetof(struct bpf_cgroup_dev_ctx, field), 0)
#define STORE(offset, from) STEP(BPF_STX | BPF_W | BPF_MEM, 10, from, offset, 0)
#define STORE_LONG(offset, from) STEP(BPF_STX | BPF_DW | BPF_MEM, 10, from, offset, 0)
#define COPY(to, from) STEP(BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0)
#define SET(to, value) STEP(BPF_ALU64 | BPF_MOV | BPF_K, to, 0, 0, value)
#define ADD(to, value) STEP(BPF_ALU64 | BPF_ADD | BPF_K, to, 0, 0, value)
#define AND(to, value) STEP(BPF_ALU64 | BPF_AND | BPF_K, to, 0, 0, value)
#define SHIFT_RIGHT(to, value) STEP(BPF_ALU64 | BPF_RSH | BPF_K, to, 0, 0, value)
#define SHIFT_LEFT(to, value) STEP(BPF_ALU64 | BPF_LSH | BPF_K, to, 0, 0, value)
/* Jumps name their own line and the label's: the steps between are skipped. */
#define GOTO_IF(line, register, value, label) \
    STEP(BPF_JMP | BPF_JEQ | BPF_K, register, 0, (label) - (line) - 1, value)
#define GOTO_UNLESS(line, register, value, label) \
    STEP(BPF_JMP | BPF_JNE | BPF_K, register, 0, (label) - (line) - 1, value)
/* A map's descriptor takes two steps; the source register marks it. */
#define MAP(to, fd) STEP(BPF_LD | BPF_DW | BPF_IMM, to, 1, 0, fd), ((struct bpf_insn){0})
#define CALL(helper) STEP(BPF_JMP | BPF_CALL, 0, 0, 0, helper)
#define RETURN STEP(BPF_JMP | BPF_EXIT, 0, 0, 0, 0)

_Static_assert(BPF_PSEUDO_MAP_FD == 1, "MAP's source register");
_Static_assert(sizeof(struct bpf_insn) == sizeof(uint64_t), "a step is a word");

/* The first twelve steps: which nodes are looked up. They leave the device's numbers in 3 and 4. */
enum { LOOK = 12 };
#define CHOOSE(caps_major, ALLOW) \
    READ(2, 1, access_type), /* kind of node in the lower half, kind of access in the upper */ \
        /*  1 */ READ(3, 1, major), \
        /*  2 */ READ(4, 1, minor), \
        /*  3 */ COPY(5, 2), \
        /*  4 */ AND(5, 0xffff), \
        /*  5 */ GOTO_UNLESS(5, 5, BPF_DEVCG_DEV_CHAR, ALLOW), \
        /*  6 */ SHIFT_RIGHT(2, 16), \
        /*  7 */ GOTO_IF(7, 2, BPF_DEVCG_ACC_MKNOD, ALLOW), /* that and nothing else */ \
        /*  8 */ GOTO_IF(8, 3, caps_major, LOOK), /* -1 is no major: this compares 64 bits */ \
        /*  9 */ GOTO_UNLESS(9, 3, NM_GATE_GPU_MAJOR, ALLOW), \
        /* 10 */ GOTO_IF(10, 4, NM_GATE_CONTROL, ALLOW), \
        /* 11 */ GOTO_IF(11, 4, NM_GATE_MODESET, ALLOW)

int nm_gate_program(uint64_t *steps, int caps_major, int map_fd)
{
    enum { ALLOW = 20, END = 21 };
    const struct bpf_insn table[] = {
        /*  0 */ CHOOSE(caps_major, ALLOW),
        /* LOOK */
        /* 12 */ STORE(-8, 3), /* a struct nm_device on the stack */
        /* 13 */ STORE(-4, 4),
        /* 14 */ MAP(1, map_fd),
        /* 16 */ COPY(2, 10),
        /* 17 */ ADD(2, -8),
        /* 18 */ CALL(BPF_FUNC_map_lookup_elem),
        /* 19 */ GOTO_IF(19, 0, 0, END), /* not in the map: 0, which is EPERM */
        /* ALLOW */
        /* 20 */ SET(0, 1),
        /* END */
        /* 21 */ RETURN,
    };
    _Static_assert(sizeof table / sizeof table[0] == END + 1, "the numbers of the lines");
    memcpy(steps, table, sizeof table);
    return END + 1;
}

int nm_gate_node_program(uint64_t *steps, int caps_major, int map_fd)
{
    enum { ALLOW = 25, END = 26 };
    const struct bpf_insn table[] = {
        /*  0 */ CHOOSE(caps_major, ALLOW),
        /* LOOK */
        /* 12 */ STORE(-8, 3), /* a struct nm_place on the stack; calls spoil 1 to 5 */
        /* 13 */ STORE(-4, 4),
        /* 14 */ CALL(BPF_FUNC_get_current_uid_gid), /* of the first user namespace */
        /* 15 */ SHIFT_LEFT(0, 32), /* the group away */
        /* 16 */ GOTO_IF(16, 0, 0, ALLOW), /* root */
        /* 17 */ CALL(BPF_FUNC_get_current_cgroup_id),
        /* 18 */ STORE_LONG(-16, 0),
        /* 19 */ MAP(1, map_fd),
        /* 21 */ COPY(2, 10),
        /* 22 */ ADD(2, -16),
        /* 23 */ CALL(BPF_FUNC_map_lookup_elem),
        /* 24 */ GOTO_IF(24, 0, 0, END),
        /* ALLOW */
        /* 25 */ SET(0, 1),
        /* END */
        /* 26 */ RETURN,
    };
    _Static_assert(sizeof table / sizeof table[0] == END + 1, "the numbers of the lines");
    memcpy(steps, table, sizeof table);
    return END + 1;
}

/* -- bpf(2) -- */

static int call(enum bpf_cmd command, union bpf_attr *attributes)
{
    long result = syscall(SYS_bpf, command, attributes, sizeof *attributes);
    return result < 0 ? -errno : (int)result;
}

static uint64_t address(const void *pointer)
{
    return (uint64_t)(uintptr_t)pointer;
}

static int describe(int fd, void *info, uint32_t size)
{
    union bpf_attr attributes = {
        .info = {.bpf_fd = (uint32_t)fd, .info_len = size, .info = address(info)}};
    return call(BPF_OBJ_GET_INFO_BY_FD, &attributes);
}

static uint32_t key_size(bool is_node)
{
    return is_node ? sizeof(struct nm_place) : sizeof(struct nm_device);
}

int nm_gate_new_map(bool is_node)
{
    union bpf_attr attributes = {
        .map_type = BPF_MAP_TYPE_HASH,
        .key_size = key_size(is_node),
        .value_size = sizeof(uint32_t),
        .max_entries = NM_GATE_MOST_DEVICES,
        .map_flags = BPF_F_NO_PREALLOC, /* few of these are ever open */
        .map_name = "nodemgr_gate",
    };
    return call(BPF_MAP_CREATE, &attributes);
}

int nm_gate_is_map(int fd, bool is_node)
{
    /* the description of a program has another layout */
    struct bpf_map_info info = {0};
    return describe(fd, &info, sizeof info) == 0 && info.type == BPF_MAP_TYPE_HASH &&
           info.key_size == key_size(is_node) && info.value_size == sizeof(uint32_t) &&
           info.max_entries == NM_GATE_MOST_DEVICES && strcmp(info.name, "nodemgr_gate") == 0;
}

int nm_gate_load(int caps_major, int map_fd, bool is_node)
{
    uint64_t steps[NM_GATE_MOST_STEPS];
    const int count = (is_node ? nm_gate_node_program : nm_gate_program)(steps, caps_major, map_fd);
    union bpf_attr attributes = {
        .prog_type = BPF_PROG_TYPE_CGROUP_DEVICE,
        .insn_cnt = (uint32_t)count,
        .insns = address(steps),
        .license = address("none"),
        .prog_name = "nodemgr_gate",
    };
    return call(BPF_PROG_LOAD, &attributes);
}

int nm_gate_is_same(int program_fd, int other_fd)
{
    struct bpf_prog_info one = {0}, other = {0};
    return describe(program_fd, &one, sizeof one) == 0 &&
           describe(other_fd, &other, sizeof other) == 0 &&
           one.type == BPF_PROG_TYPE_CGROUP_DEVICE && other.type == one.type &&
           memcmp(one.tag, other.tag, sizeof one.tag) == 0;
}

int nm_gate_mount(const char *path)
{
    struct statfs file_system;
    if (statfs(path, &file_system) != 0)
        return -errno;
    if ((uint32_t)file_system.f_type == BPF_FS_MAGIC)
        return 0;
    return mount("bpf", path, "bpf", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=700") == 0 ? 0
                                                                                        : -errno;
}

int nm_gate_pin(int fd, const char *path)
{
    union bpf_attr attributes = {.pathname = address(path), .bpf_fd = (uint32_t)fd};
    return call(BPF_OBJ_PIN, &attributes);
}

int nm_gate_open_pin(const char *path)
{
    union bpf_attr attributes = {.pathname = address(path)};
    return call(BPF_OBJ_GET, &attributes);
}

int nm_gate_set_open(int map_fd, const void *key)
{
    uint32_t is_open = 1;
    union bpf_attr attributes = {.map_fd = (uint32_t)map_fd,
                                 .key = address(key),
                                 .value = address(&is_open),
                                 .flags = BPF_ANY};
    return call(BPF_MAP_UPDATE_ELEM, &attributes);
}

int nm_gate_set_shut(int map_fd, const void *key)
{
    union bpf_attr attributes = {.map_fd = (uint32_t)map_fd, .key = address(key)};
    int result = call(BPF_MAP_DELETE_ELEM, &attributes);
    return result == -ENOENT ? 0 : result;
}

int nm_gate_next_open(int map_fd, const void *after, void *next)
{
    union bpf_attr attributes = {
        .map_fd = (uint32_t)map_fd, .key = address(after), .next_key = address(next)};
    int result = call(BPF_MAP_GET_NEXT_KEY, &attributes);
    return result == -ENOENT ? 0 : result == 0 ? 1 : result;
}

static int at_cgroup(enum bpf_cmd command, int cgroup_fd, int program_fd)
{
    union bpf_attr attributes = {
        .target_fd = (uint32_t)cgroup_fd,
        .attach_bpf_fd = (uint32_t)program_fd,
        .attach_type = BPF_CGROUP_DEVICE,
        .attach_flags = command == BPF_PROG_ATTACH ? BPF_F_ALLOW_MULTI : 0,
    };
    return call(command, &attributes);
}

int nm_gate_attach(int cgroup_fd, int program_fd)
{
    return at_cgroup(BPF_PROG_ATTACH, cgroup_fd, program_fd);
}

int nm_gate_detach(int cgroup_fd, int program_fd)
{
    const int result = at_cgroup(BPF_PROG_DETACH, cgroup_fd, program_fd);
    return result == -ENOENT ? 0 : result;
}

int nm_gate_is_attached(int cgroup_fd, int program_fd)
{
    struct bpf_prog_info program = {0};
    uint32_t ids[MOST_ATTACHED];
    union bpf_attr attributes = {
        .query = {
            .target_fd = (uint32_t)cgroup_fd,
            .attach_type = BPF_CGROUP_DEVICE,
            .query_flags = BPF_F_QUERY_EFFECTIVE,
            .prog_ids = address(ids),
            .prog_cnt = MOST_ATTACHED,
        },
    };
    int result = describe(program_fd, &program, sizeof program);
    if (result == 0)
        result = call(BPF_PROG_QUERY, &attributes);
    if (result < 0)
        return result;
    for (uint32_t i = 0; i < attributes.query.prog_cnt; i++)
        if (ids[i] == program.id)
            return 1;
    return 0;
}
