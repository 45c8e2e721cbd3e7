"""Made of rpc.proto beside it by tests/services/protoc.py: do not edit."""

SOURCES_SHA256 = "c3237001a4a70fd6dcdb6e075749dfdcb6b3eac8296c59f5e69718a76cd8479d"

DESCRIPTOR_SET = (
    "c-oCs-EP!Y5U#zu+4W=-%pt%MP(@uTMM!L0elDP>$XE`zaqZPv2W~*fvQH8VukG62G<}6WK&8F{7kv{X9*H@}KiSQ$pm(1CnQy*1"
    "hJP=Cl4rp<%hNI?TPJ>)rr9`1XR|cXKFM&EW&ve?%vn*sWPZr<iEw-beT+JYl5iy5miD&q-yAQ6j%j5T-n8*07WDAb%|@~adaxR_"
    "T5IfPEceSOO{!#7267EH0zZzeaMZai?_H*~M0Q~i#1TtMv~<xjq^(RefSi^2Uq(7l%25w{xco%E_cLA4YHwkCxggmAl}?Oz`<A2I"
    "?<Tr&V0!8|<R)C_TElfb%Q@6N%XJ!~L`JY9jJ7*9xr<{O+(DJKk1|{nV-{JO6l@XG^NA$vd#jzuhK-{1%XxvQ$%xv+b*QbR<Laph"
    "t6-~hke}d6!SYj<TUqdm<pqxE%x4IqgeBLR$QTGa3s}YxF=D?c9Dl|TTWL?BYb<;NEYH*Y_u^P!tk70o+D;#B3)|5i!1i*_WE1++"
    "L&GqqQv_Uro=K@o5nlY<*FD`vJU>W4*6{ONfEg=K(opou@l@!7hWrY<Aq!$ZkCJ22xd;o=Soq7r{|g@EAzZEcZnQOCf{b0d-l#o="
    "okK*}N{-Tew!pAEu*Hs!SWrf%j5~;%Qs}Z$JA)gz7$Z#*u0+Jsq-1AR5%LTM^E$OSuFd=3U!cjl%CrsQo5|{S1sQN_jja9GfgxXw"
    "U&K|l5%f>%fh9qlMkK#Lj}wj6T>W8{t8JDs|KjUrw2Hw?>y_zymWT$1v=Yb@==t;Vq(I7baIQOFOR1wXtwMJHkzmm1_<>avs0mR^"
    "<Q6D17M%D=RLtt#pDVru47b%66V?aO$~-Hkh+~!<GjRt)dalskfYOe?%=0Z!9P@?iS-NK;*M~5$9IKLKZZux%wrx5uOtr&})SOOS"
    "XKJclGJx)Ds!!COb_(Ee?Al|9LZoAK6bWweM{z+TCPae&ndYGwACIz;34!i={>pa*EaIDQpHCSDOuVoPZA7gAV&qI@_T%E<Rr7%M"
    "{5bN98um&cKQ_y*=z8PATF?7$c!29GSb$G;O^;gA{+2*ps9M#03>zYf7v-$^?n3(2HfbGz6z*4<`GfmEW1EP(zllp}e|_W<Z1O+B"
    "^FzzV{{*gAMF&*8rk1BaxA}&z!xgTXP}g$}*GAv{eUqy4XU|qgG5"
)
