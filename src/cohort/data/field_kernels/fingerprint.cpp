// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/field_kernels/fingerprint.h"

#include <farmhash.h>

namespace cohort::data {

std::uint64_t fingerprint64(std::string_view bytes) {
  return util::Fingerprint64(bytes.data(), bytes.size());
}

}  // namespace cohort::data
