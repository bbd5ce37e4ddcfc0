#include "core/spec/acceptance.h"

#include <stdbool.h>

#define STANDS_FOR 4.0   /* tries of a request that experience with all others stands for */
#define GUESS 4.0        /* tries of all that the first guess stands for */
#define FULL_MINE 32.0f  /* a request's count is halved there */
#define FULL_ALL 1024.0f /* the common count */

/* Before anything is known. */
static const double first_guess[DRAFT_KINDS] = {
    [DRAFT_TEXT_2] = 0.4,   [DRAFT_TEXT_3] = 0.5,    [DRAFT_TEXT_4] = 0.65,
    [DRAFT_TEXT_6] = 0.75,  [DRAFT_TEXT_10] = 0.85,  [DRAFT_STORE_3] = 0.4,
    [DRAFT_STORE_6] = 0.65, [DRAFT_STORE_10] = 0.85, [DRAFT_MODEL_0] = 0.2,
    [DRAFT_MODEL_20] = 0.3, [DRAFT_MODEL_40] = 0.45, [DRAFT_MODEL_60] = 0.6,
    [DRAFT_MODEL_80] = 0.8,
};

enum draft_kind draft_kind_text(uint32_t n)
{
    return n >= 10  ? DRAFT_TEXT_10
           : n >= 6 ? DRAFT_TEXT_6
           : n >= 4 ? DRAFT_TEXT_4
           : n == 3 ? DRAFT_TEXT_3
                    : DRAFT_TEXT_2;
}

enum draft_kind draft_kind_store(uint32_t n)
{
    return n >= 10 ? DRAFT_STORE_10 : n >= 6 ? DRAFT_STORE_6 : DRAFT_STORE_3;
}

enum draft_kind draft_kind_model(float p)
{
    int fifth = p >= 0.8f ? 4 : p >= 0.6f ? 3 : p >= 0.4f ? 2 : p >= 0.2f ? 1 : 0;
    return (enum draft_kind)(DRAFT_MODEL_0 + fifth);
}

static uint32_t group_of(uint32_t place)
{
    return place >= 8 ? 4 : place >= 4 ? 3 : place >= 2 ? 2 : place;
}

static double mixed(double accepted, double tried, double before, double weight)
{
    return (accepted + before * weight) / (tried + weight);
}

double acceptance_of(const struct acceptance *all, const struct acceptance *mine,
                     enum draft_kind kind, uint32_t place)
{
    uint32_t g = group_of(place);
    double common = mixed((double)all->accepted[kind][g], (double)all->tried[kind][g],
                          first_guess[kind], GUESS);
    return mixed((double)mine->accepted[kind][g], (double)mine->tried[kind][g], common, STANDS_FOR);
}

double acceptance_of_model(const struct acceptance *all, const struct acceptance *mine,
                           uint32_t place)
{
    uint32_t g = group_of(place);
    double accepted = 0, tried = 0, all_accepted = 0, all_tried = 0;
    for (int kind = DRAFT_MODEL_0; kind <= DRAFT_MODEL_80; kind++) {
        accepted += (double)mine->accepted[kind][g];
        tried += (double)mine->tried[kind][g];
        all_accepted += (double)all->accepted[kind][g];
        all_tried += (double)all->tried[kind][g];
    }
    double common = mixed(all_accepted, all_tried, first_guess[DRAFT_MODEL_40], GUESS);
    return mixed(accepted, tried, common, STANDS_FOR);
}

static void count(float *accepted, float *tried, bool right, float full)
{
    *tried += 1;
    *accepted += right;
    if (*tried > full) {
        *tried *= 0.5f;
        *accepted *= 0.5f;
    }
}

void acceptance_learn(struct acceptance *all, struct acceptance *mine, const uint8_t *kinds,
                      uint32_t n, uint32_t right)
{
    for (uint32_t i = 0; i < n && i <= right; i++) {
        uint32_t g = group_of(i);
        count(&mine->accepted[kinds[i]][g], &mine->tried[kinds[i]][g], i < right, FULL_MINE);
        count(&all->accepted[kinds[i]][g], &all->tried[kinds[i]][g], i < right, FULL_ALL);
    }
}
