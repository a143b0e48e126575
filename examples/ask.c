/* ask.c: loads a model, asks one question, prints the answer as it comes.
 *
 *   cc ask.c -o ask $(pkg-config --cflags --libs saccade)
 *   ./ask model.gguf "Why is the sky blue?"
 */
#include <saccade.h>

#include <stdio.h>

static bool on_event(void *user, const sac_event *event)
{
    sac_finish *finish = user;
    if (event->kind == SAC_EVENT_TOKEN) {
        fwrite(event->text, 1, event->text_bytes, stdout);
        fflush(stdout);
    }
    if (event->kind == SAC_EVENT_DONE) {
        *finish = event->finish;
        printf("\n");
        if (event->error) fprintf(stderr, "ask: %s\n", event->error);
        fprintf(stderr, "%u tokens read, %u written at %.1f tokens/s\n", event->timings.n_prompt,
                event->timings.n_predicted, event->timings.predicted_per_s);
    }
    return false; /* true would cancel the request */
}

static sac_status ask(const char *path, const char *question, sac_error *err)
{
    sac_model *model = NULL;
    sac_engine *engine = NULL;
    int32_t *prompt = NULL;
    sac_finish finish = SAC_FINISH_NONE;

    const sac_model_params model_params = sac_model_params_default();
    sac_status status = sac_model_load(&model, path, &model_params, err);
    if (status != SAC_OK) goto done;

    const sac_engine_params engine_params = sac_engine_params_default();
    status = sac_engine_create(&engine, model, &engine_params, err);
    if (status != SAC_OK) goto done;

    const sac_message message = {.role = "user", .content = question};
    const sac_chat_params chat = {.add_generation_prompt = true};
    size_t n_prompt = 0;
    status = sac_chat_tokens(model, &message, 1, &chat, &prompt, &n_prompt, err);
    if (status != SAC_OK) goto done;

    sac_request request = sac_request_default();
    request.prompt = prompt;
    request.n_prompt = n_prompt;
    request.max_tokens = 100;
    request.sampling.temp = 0; /* always the likeliest token */
    request.on_event = on_event;
    request.user = &finish;
    uint64_t id;
    status = sac_submit(engine, &request, &id, err);
    for (uint32_t active = 1; status == SAC_OK && active > 0;) {
        status = sac_run(engine, &active, err);
    }

done:
    sac_free(prompt);
    sac_engine_free(engine);
    sac_model_free(model);
    return finish == SAC_FINISH_ERROR ? SAC_ERR_ARG : status;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL.gguf QUESTION\n", argv[0]);
        return 2;
    }
    sac_error err = {0};
    const sac_status status = ask(argv[1], argv[2], &err);
    if (status != SAC_OK) fprintf(stderr, "ask: %s: %s\n", sac_status_name(status), err.msg);
    return status == SAC_OK ? 0 : 1;
}
