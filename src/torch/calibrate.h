/* Runs the ops whose guards can leave arguments out once each on tiny tensors, so that every site of
 * theirs has a name before the program's first save.
 *
 * SPDX-License-Identifier: MIT */
#ifndef MESA_TORCH_CALIBRATE_H
#define MESA_TORCH_CALIBRATE_H

/* Init only, in a plain thread, after the self-test. Does nothing where libtorch has no
 * aoti_torch_call_dispatcher: then such sites are named when a full set of saves was seen. */
void mesa_calibrate(void);

#endif
