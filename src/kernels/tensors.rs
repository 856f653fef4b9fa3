//! Named groups of tensors, generic over where a tensor lives: a shape, host data, device memory or float64 arrays.

/// Declares a struct of tensors that all have the type `T`, with the walks over its fields that the
/// library needs: by reference and fallibly mapped, each with the field's name.
macro_rules! tensor_group {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, Default, PartialEq)]
        pub struct $name<T> { $($(#[$field_meta])* pub $field: T,)+ }

        impl<T> $name<T> {
            /// The names of the arrays, in declaration order.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($field)),+];

            /// Builds the group by asking for each array by its name.
            ///
            /// # Errors
            /// The first error of `make`.
            pub fn try_build<E>(
                mut make: impl FnMut(&'static str) -> std::result::Result<T, E>,
            ) -> std::result::Result<Self, E> {
                Ok(Self { $($field: make(stringify!($field))?,)+ })
            }

            /// The group of what `map` makes of each named tensor.
            ///
            /// # Errors
            /// The first error of `map`.
            pub fn try_map<U, E>(
                self,
                mut map: impl FnMut(&'static str, T) -> std::result::Result<U, E>,
            ) -> std::result::Result<$name<U>, E> {
                Ok($name { $($field: map(stringify!($field), self.$field)?,)+ })
            }

            /// The group of what `map` makes of each named tensor.
            pub fn map<U>(self, mut map: impl FnMut(&'static str, T) -> U) -> $name<U> {
                $name { $($field: map(stringify!($field), self.$field),)+ }
            }

            /// The tensors with their names, in declaration order.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, &T)> {
                [$((stringify!($field), &self.$field)),+].into_iter()
            }

            /// The group of references to the tensors.
            pub fn as_ref(&self) -> $name<&T> {
                $name { $($field: &self.$field,)+ }
            }
        }
    };
}

pub(crate) use tensor_group;
