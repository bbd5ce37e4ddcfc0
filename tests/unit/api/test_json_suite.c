/* Nicolas Seriot's JSON parsing suite: files named y_ must parse, n_ must be refused, i_ may do either.
 * The same bytes as a request's body never give anything but an error of the 400s. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "core/api/json_read.h"
#include "tests/unit/api/fake_tokenizer.h"

static struct buffer read_file(const char *path)
{
    struct buffer text = {0};
    char block[4096];
    size_t n;
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        exit(EXIT_FAILURE);
    }
    while ((n = fread(block, 1, sizeof(block), file)) > 0)
        buffer_add(&text, block, n);
    fclose(file);
    return text;
}

/* 1 if the file is not treated as its name says. */
static int judge(const char *path, const char *name)
{
    struct buffer text = read_file(path);
    /* An exact copy on the heap, so that a sanitizer sees any step over the end. */
    char *copy = malloc(text.len + (text.len == 0));
    if (text.len > 0)
        memcpy(copy, text.ptr, text.len);
    struct slice body = {copy, text.len};
    struct json json;
    struct error err = {0};
    enum status status = json_parse(&json, body, &err);
    json_release(&json);
    int wrong = name[0] == 'y' ? status != STATUS_OK : name[0] == 'n' && status == STATUS_OK;
    if (wrong)
        printf("%s: %s\n", name, status == STATUS_OK ? "accepted" : err.text);
    for (enum api_endpoint e = API_CHAT; e <= API_COMPLETIONS; e++) {
        struct api_request request;
        enum status refused = api_parse(e, body, &fake_context, &request, &err);
        bool json_error = refused == STATUS_INVALID_JSON;
        if (status_http(refused) != 400 || json_error != (status != STATUS_OK)) {
            printf("%s: as a request: %s\n", name, status_name(refused));
            wrong = 1;
        }
        api_request_release(&request);
    }
    free(copy);
    buffer_release(&text);
    return wrong;
}

int main(void)
{
    const char *shared = getenv("TOKENRING_SHARED");
    struct stat info;
    if (shared == NULL || stat(shared, &info) != 0) {
        printf("SKIP: api_json_suite: no shared data folder\n");
        return 77;
    }
    char folder[2048];
    snprintf(folder, sizeof(folder), "%s/data/json/JSONTestSuite/test_parsing", shared);
    DIR *dir = opendir(folder);
    if (dir == NULL) {
        perror(folder);
        return EXIT_FAILURE;
    }
    int files = 0, wrong = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (strstr(entry->d_name, ".json") == NULL)
            continue;
        char path[4096];
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        wrong += judge(path, entry->d_name);
        files++;
    }
    closedir(dir);
    printf("%d files, %d wrong\n", files, wrong);
    return files >= 300 && wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
