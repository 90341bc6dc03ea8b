// SPDX-License-Identifier: Apache-2.0
#include <openssl/evp.h>

#include <array>

#include "cohort/core/error.h"
#include "cohort/function/prepared_program.h"

namespace cohort::function {

std::string identity_of(std::span<const std::byte> bytes) {
  constexpr std::size_t kIdentityBytes = 16;
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  const int is_ok =
      EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  COHORT_CHECK(is_ok == 1, ErrorCode::internal, "[function.identity] libcrypto gives no SHA-256");
  std::string text;
  for (std::size_t i = 0; i < kIdentityBytes; ++i) {
    text += kDigits[digest[i] >> 4];
    text += kDigits[digest[i] & 15];
  }
  return text;
}

}  // namespace cohort::function
