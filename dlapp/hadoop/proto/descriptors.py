"""Made of rpc.proto beside it by tests/services/protoc.py: do not edit."""

SOURCES_SHA256 = "deb3b4faf70517d32dcca2426a8d441aeedf59d4088ba16772878eaa3c2ab9c1"

DESCRIPTOR_SET = (
    "c-oCs-EQ1O6vp0lc73u*-D%oxQ-p#kQiQ|;ZMmRGAlEppiLqC+PTPy3%CaYkRj+MqZwRlzEfNpG1<%6!aKoALPj<6Q;cm|Vob!EW"
    "2L8SQYLSPNyvVAI?3@QtmgSQ$o6oaU|4WA3G!H5JX~D|sISV3IOoii@Fu<teIE}{Afpob0@cv{abV6&Z@TRRVu|dJ3mycx;^k_Y3"
    "z1GCbSrJrmme$GY4CD@Mg+Y?o(YSXYAKs*mMD}4ACNWDZwDi$3qMb~1fPz)UFJ`t#tFeN2xcNl>^b5MA)qjND)q-RXG&(ik9NDhn"
    "yqOy2vE^&;k^69$YfaDfZTH0RZO?6u5*fpuFgo7M;x4XbatBS;f9t^=(Po)vX~~vndexDH_ulC`a$u{hf@)FX)MT96<4sdrOUKnS"
    "5mt|_$w5AcTO}(lSYhYk3s#iarn{Kq5G5?R$wVeV*k#CaJ`pns%F+$y3}-7Hs&s>eBfyFxD}E@?#Eezi$>adG#rZo{1#vRoLbF1b"
    "RV(-n(ERWC4L9QV2zFOHC)+TXotUOIn;~o}C>Et2MUe1#WcY@IsQe)T*}(D-0OqVZ&mz$=M@6Me8uAV7M=VT&B2Ldl{~|2R65%fk"
    "|95zh$8fvut<^SD7nJVP%|`td?42M^c6yo>^Cg}>fE{*v%EBtXVBA4$rb<_pe7*$>65$}%=(Mta3HK0sGfPt*fS6`!#V+d$kZ)nQ"
    "Xv&Jf?S~&-BjTo8(JqKr&YM;Q-LP^i>worO#9<4{q^>rG!9_C+Nl>#D$=9H8Dzj!AK3?C3F3W_UI29PJV{n(1DtpUPae)!71@Z)x"
    "U{RfyNa`N;_29o!8t6>xkp15!7`8gT!Zke_vNRHTAJjPu&x15B=M68e6z>`gw>3K%H7nQ2JS(P15|*AZv1ucErO;o4+O@yB13RF)"
    ")-%ty4d22&7{SnX?OKw#(R^+=j^#eHv>rE7Yc}=VnWgo~5c)5vG1V0P0>J09>lP)BkgD-%EO^JC-6f6a5Xt{@Rz#wGT<TUP1p06J"
    "KhhIp5oeA*?=lXVc*9lNih2peESSg~B<1mo_K8-4Bo4}E?6p8XYr(GRdhZ&nSNCsufbf+p#K)weM<eOKN}w%Ot!sV-TOx`V<*fPe"
    "TKe^C(k1{YJg77CC;flMwh^CvFE*w7T*(dC=6}u86WhU`2;tSx0TnN)?Hf-Wj__T$#Whpv`JU-H=zDZzQBD2_S;k{Q"
)
