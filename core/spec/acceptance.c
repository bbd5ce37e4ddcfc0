#include "core/spec/acceptance.h"

#define STANDS_FOR 6.0   /* tries of a request that experience with all others stands for */
#define GUESS 6.0        /* tries of all that the first guess stands for */
#define FULL_MINE 32.0f  /* a request's count is halved there */
#define FULL_ALL 1024.0f /* the common count */

/* Before anything is known. */
static const double first_guess[DRAFT_KINDS] = {
    /* alone, confirmed, disputed */
    0.45,
    0.85,
    0.20, /* 2 equal tokens */
    0.60,
    0.90,
    0.30, /* 3 */
    0.68,
    0.93,
    0.40, /* 4-5 */
    0.80,
    0.96,
    0.45, /* 6-9 */
    0.90,
    0.98,
    0.65, /* more */
    [DRAFT_STORE_3] = 0.4,
    [DRAFT_STORE_6] = 0.65,
    [DRAFT_STORE_10] = 0.85,
    /* A model that was trained as a model knows how sure it is. */
    [DRAFT_MODEL] = 0.07,
    0.15,
    0.25,
    0.35,
    0.45,
    0.55,
    0.65,
    0.75,
    0.85,
    0.95,
    [DRAFT_DRAWN] = 0.18,
    0.23,
    0.27,
    0.31,
    0.36,
    0.40,
    0.45,
    0.50,
    0.60,
    0.80,
};

enum draft_kind draft_kind_text(uint32_t n, enum draft_second second)
{
    uint32_t length = n >= 10 ? 4 : n >= 6 ? 3 : n >= 4 ? 2 : n == 3 ? 1 : 0;
    return (enum draft_kind)(DRAFT_TEXT + length * DRAFT_SECONDS + second);
}

enum draft_kind draft_kind_store(uint32_t n)
{
    return n >= 10 ? DRAFT_STORE_10 : n >= 6 ? DRAFT_STORE_6 : DRAFT_STORE_3;
}

enum draft_kind draft_kind_model(float p, bool drawn)
{
    uint32_t tenth = p > 0 ? (uint32_t)(p * (float)DRAFT_TENTHS) : 0;
    return (enum draft_kind)((drawn ? DRAFT_DRAWN : DRAFT_MODEL) +
                             (tenth < DRAFT_TENTHS ? tenth : DRAFT_TENTHS - 1));
}

static uint32_t group_of(uint32_t place)
{
    return place >= 4 ? 2 : place >= 1 ? 1 : 0;
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
