// C++ has bool.
#pragma once
