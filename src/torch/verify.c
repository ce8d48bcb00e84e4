/* Element by element in double precision, over any strides: slow and plain on purpose, since it judges
 * the fast paths.
 *
 * SPDX-License-Identifier: MIT */
#include "torch/verify.h"

#include "classify/layout.h"
#include "torch/config.h"
#include "torch/decision.h"

#include <math.h>
#include <string.h>

static double half_value(uint16_t bits) {
    int exponent = bits >> 10 & 31;
    double fraction = bits & 1023;
    double magnitude = exponent == 31  ? (fraction == 0 ? INFINITY : NAN)
                       : exponent == 0 ? ldexp(fraction, -24)
                                       : ldexp(fraction + 1024, exponent - 25);
    return bits & 0x8000 ? -magnitude : magnitude;
}

static double value_at(enum mesa_dtype dtype, const char *element) {
    uint16_t half;
    uint32_t wide;
    float single;
    double result;
    switch (dtype) {
    case MESA_F32:
        memcpy(&single, element, sizeof single);
        return single;
    case MESA_F64:
        memcpy(&result, element, sizeof result);
        return result;
    case MESA_F16:
        memcpy(&half, element, sizeof half);
        return half_value(half);
    default: /* bfloat16 */
        memcpy(&half, element, sizeof half);
        wide = (uint32_t)half << 16;
        memcpy(&single, &wide, sizeof single);
        return single;
    }
}

/* What a comparison reads of a value: true or false as 1 or 0, half of that for a tie. */
static double compared(const struct mesa_plan *plan, double x) {
    if (plan->codec == &mesa_codec_interval)
        return (plan->lo <= x && x <= plan->hi) * (x == plan->lo || x == plan->hi ? 0.5 : 1);
    switch (plan->predicate) {
    case MESA_ABOVE:
        return !(x <= plan->lo);
    case MESA_GREATER:
        return x > plan->lo;
    case MESA_BETWEEN:
        return plan->lo < x && x < plan->hi;
    case MESA_WITHIN:
        return plan->lo <= x && x <= plan->hi;
    default:
        return x != 0;
    }
}

static void compare(double original, double restored, struct mesa_verify_sums *sums) {
    sums->elements++;
    if (isnan(original) && isnan(restored))
        return;
    if (isinf(original) && original == restored)
        return;
    double error = restored - original;
    sums->error2 += error * error;
    sums->value2 += original * original;
    sums->restored2 += restored * restored;
    sums->dot += original * restored;
    if (fabs(error) > sums->largest || isnan(error))
        sums->largest = isnan(error) ? INFINITY : fabs(error);
    sums->sign_flips += (original > 0 && restored < 0) || (original < 0 && restored > 0);
    sums->zero_changes += (original == 0) != (restored == 0);
}

static void compare_exact(const struct mesa_view *a, const struct mesa_view *b, size_t offset_a,
                          size_t offset_b, struct mesa_verify_sums *sums) {
    size_t bytes = mesa_dtype_bytes(a->dtype);
    bool same =
        memcmp((const char *)a->data + offset_a, (const char *)b->data + offset_b, bytes) == 0;
    sums->elements++;
    sums->error2 += !same;
    sums->value2 += 1;
    sums->restored2 += 1;
    sums->dot += same;
    if (!same)
        sums->largest = INFINITY;
}

/* Next multi-index in row-major order; false after the last. */
static bool advance(const struct mesa_view *view, int64_t *index) {
    for (int i = view->ndim - 1; i >= 0; i--) {
        if (++index[i] < view->sizes[i])
            return true;
        index[i] = 0;
    }
    return false;
}

static size_t offset_of(const struct mesa_view *view, const int64_t *index) {
    size_t offset = 0;
    for (int i = 0; i < view->ndim; i++)
        offset += (size_t)(index[i] * view->strides[i]);
    return offset * mesa_dtype_bytes(view->dtype);
}

void mesa_verify(struct mesa_hook *hook, const struct mesa_tensor *restored) {
    struct mesa_view a, b;
    if (hook->held == NULL || hook->is_half /* one alone says nothing */ ||
        mesa_tensor_view(hook->original, &a) != MESA_OK ||
        mesa_tensor_view(restored, &b) != MESA_OK || a.elements == 0)
        return;
    const struct mesa_plan *plan = &hook->held->plan;
    bool is_mask = plan->codec == &mesa_codec_interval ||
                   (plan->codec == &mesa_codec_mask && hook->dtype != MESA_BOOL);
    bool is_sign = plan->codec == &mesa_codec_sign;
    struct mesa_verify_sums sums = {0};
    int64_t index[MESA_MAX_DIMS] = {0};
    do {
        size_t at = offset_of(&a, index), to = offset_of(&b, index);
        if (!mesa_dtype_is_real(hook->dtype)) {
            compare_exact(&a, &b, at, to, &sums);
            continue;
        }
        double x = value_at(a.dtype, (const char *)a.data + at);
        double y = value_at(b.dtype, (const char *)b.data + to);
        if (is_mask)
            compare(compared(plan, x), compared(plan, y), &sums);
        else if (is_sign)
            compare((x > 0) - (x < 0), (y > 0) - (y < 0), &sums);
        else
            compare(x, y, &sums);
    } while (advance(&a, index));
    mesa_ledger_verified(hook->record, &sums);
}
