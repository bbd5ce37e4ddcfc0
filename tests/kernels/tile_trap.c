/* tile_trap.c: executes trapped tile instructions in the model.
 *
 * All are VEX.128 with opcode map 0F38 and W0: C4, then ~R ~X ~B and map, then W ~vvvv L pp, opcode, ModRM.
 *
 *     opcode 49  pp 0 reg 0 mem LDTILECFG, C0 TILERELEASE; pp 3 mod 3 rm 0 TILEZERO reg
 *     opcode 4B  pp 3 TILELOADD, pp 1 TILELOADDT1, pp 2 TILESTORED: reg, [base + index·scale + disp]
 *     opcode 5E  pp 3 TDPBSSD, 2 TDPBSUD, 1 TDPBUSD, 0 TDPBUUD: reg (C), rm (A), vvvv (B) */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "tile_model.h"

/* Registers in the order of their encodings. */
static const int registers[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                  REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                  REG_R12, REG_R13, REG_R14, REG_R15};

struct operand {
    uint64_t base, index; /* base with displacement; index scaled: a tile's stride */
    unsigned bytes;       /* of ModRM, SIB and displacement */
};

/* The memory operand at ModRM, the last bytes of its instruction. */
static struct operand decode(const uint8_t *modrm, const greg_t *regs, bool x, bool b)
{
    const unsigned mod = modrm[0] >> 6, rm = modrm[0] & 7;
    struct operand o = {.bytes = 1};
    bool based = true;

    if (rm == 4) {
        const unsigned index = (modrm[1] >> 3 & 7) | (x ? 8 : 0), base = modrm[1] & 7;
        o.bytes = 2;
        if (index != 4)
            o.index = (uint64_t)regs[registers[index]] << (modrm[1] >> 6);
        based = !(mod == 0 && base == 5);
        if (based)
            o.base = (uint64_t)regs[registers[base | (b ? 8 : 0)]];
    } else if (!(mod == 0 && rm == 5)) {
        o.base = (uint64_t)regs[registers[rm | (b ? 8 : 0)]];
    }
    if (mod == 1) {
        o.base += (uint64_t)(int64_t)(int8_t)modrm[o.bytes];
        o.bytes += 1;
    } else if (mod == 2 || !based || (mod == 0 && rm == 5)) {
        int32_t displacement;
        memcpy(&displacement, modrm + o.bytes, sizeof(displacement));
        o.bytes += 4;
        o.base += (uint64_t)(int64_t)displacement;
        if (mod == 0 && rm == 5) /* relative to the next instruction */
            o.base += (uint64_t)(uintptr_t)(modrm + o.bytes);
    }
    return o;
}

/* Executes the tile instruction at code; returns its length, 0 if it is none. */
static unsigned execute(const uint8_t *code, const greg_t *regs)
{
    if (code[0] != 0xc4 || (code[1] & 0x9f) != 0x82 || (code[2] & 0x84) != 0)
        return 0;
    /* ~R is set (tiles are 0-7), map is 2, W and L are 0. */
    const bool x = !(code[1] & 0x40), b = !(code[1] & 0x20);
    const unsigned vvvv = ~code[2] >> 3 & 15, pp = code[2] & 3, opcode = code[3];
    const uint8_t *modrm = code + 4;
    const unsigned mod = *modrm >> 6, reg = *modrm >> 3 & 7, rm = *modrm & 7;
    struct operand o = {.bytes = 1};

    if (mod != 3)
        o = decode(modrm, regs, x, b);
    if (opcode == 0x49 && mod != 3 && pp == 0 && reg == 0)
        tile_model_configure((const struct tile_config *)(uintptr_t)o.base);
    else if (opcode == 0x49 && *modrm == 0xc0 && pp == 0)
        tile_model_release();
    else if (opcode == 0x49 && mod == 3 && rm == 0 && pp == 3)
        tile_model_zero(reg);
    else if (opcode == 0x4b && mod != 3 && rm == 4 && (pp == 3 || pp == 1))
        tile_model_load(reg, (const void *)(uintptr_t)o.base, o.index);
    else if (opcode == 0x4b && mod != 3 && rm == 4 && pp == 2)
        tile_model_store(reg, (void *)(uintptr_t)o.base, o.index);
    else if (opcode == 0x5e && mod == 3)
        tile_model_product(reg, rm, vvvv, pp >= 2, pp & 1);
    else
        return 0;
    return 4 + o.bytes;
}

static void on_illegal(int signal_number, siginfo_t *info, void *context)
{
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned length = execute((const uint8_t *)(uintptr_t)regs[REG_RIP], regs);
    (void)info;
    if (length == 0) {
        signal(signal_number, SIG_DFL);
        raise(signal_number);
    }
    regs[REG_RIP] += length;
}

void tile_trap_install(void)
{
    struct sigaction action = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGILL, &action, NULL) != 0)
        abort();
}
