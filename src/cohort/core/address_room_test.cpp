// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/address_room.h"

#include <gtest/gtest.h>

#include "cohort/core/blas.h"
#include "cohort/testing/little_memory.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

TEST(AddressRoom, IsThereWhereNothingLimitsIt) {
  ASSERT_FALSE(has_address_limit()) << "the tests need a shell without ulimit -v";
  EXPECT_TRUE(has_address_room(std::size_t{1} << 60));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they need address space

TEST(AddressRoom, IsMissingWhereTheSystemRefusesIt) {
  const testing::LittleMemory little(std::size_t{16} << 20);
  EXPECT_TRUE(has_address_limit());
  EXPECT_TRUE(has_address_room(std::size_t{8} << 20));
  EXPECT_FALSE(has_address_room(std::size_t{64} << 20));
  EXPECT_THAT([] { check_address_room((std::size_t{64} << 20) - 1, "for a test"); },
              throws_error(ErrorCode::resource_exhausted,
                           "room for 64 MiB more for a test, got none; give this process more "
                           "address space (ulimit -v)"));
}

// OpenBLAS tried for ever to get it, inside of the first product of matrices.
TEST(AddressRoom, OfBlasIsMissingBeforeTheFirstProduct) {
  const testing::LittleMemory little(std::size_t{16} << 20);
  EXPECT_THAT([] { take_blas_memory(); },
              throws_error(ErrorCode::resource_exhausted, "to multiply matrices (BLAS)"));
}

#endif

}  // namespace
}  // namespace cohort
