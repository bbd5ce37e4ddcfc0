#include "core/sched/engine.h"

#include "core/model/model.h"

static void step_model(void *data, const struct step *step, float *logits)
{
    model_step(data, step, logits);
}

static uint64_t kv_read(void *data)
{
    return model_kv_read(data);
}

struct sched_engine sched_engine_of(struct model *model, const struct kernels *kernels,
                                    struct team *team)
{
    const struct model_info *info = model_info(model);
    return (struct sched_engine){
        .data = model,
        .n_vocab = info->vocab,
        .logits_stride = model_logits_stride(model),
        .context = info->context,
        .max_tokens = model_max_tokens(model),
        .kernels = kernels,
        .team = team,
        .step = step_model,
        .kv_read = kv_read,
    };
}
